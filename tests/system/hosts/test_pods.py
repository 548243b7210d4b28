"""The containers of deploy/kubernetes run as they are, in pods that the Job controller kills and makes anew."""

from tests.deploy.kubernetes.manifests import BASE, find_pods
from tests.system.hosts.cluster import BuildCluster
from tests.system.hosts.pods import Pods

TRAINING = """
import os
print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"], "on", os.environ["HOROVOD_HOSTNAME"])
"""


def test_the_base_runs_the_training_on_each_of_its_pods(build: BuildCluster) -> None:
    """Its user has no account, no home and no privileges, and its root is read-only."""
    (pod,) = find_pods(BASE)
    names = [f"train-{index}" for index in range(pod.job["completions"])]
    pods = Pods(build, *names)
    pods.cluster.write("train.py", TRAINING)
    running = [pods.start(pod, name, index) for index, name in enumerate(names)]
    finished = [{name: one.wait() for name, one in containers.items()} for containers in running]
    assert [one.returncode for containers in finished for one in containers.values()] == [0] * 4, finished
    assert sorted(finished[0]["launcher"].stdout.splitlines()) == [
        f"[{rank}@{name}] rank {rank} of {len(names)} on {name}" for rank, name in enumerate(names)
    ]
