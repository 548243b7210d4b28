"""The containers of deploy/kubernetes run as they are, in pods that the Job controller kills and makes anew."""

import pytest

from tests.deploy.kubernetes.manifests import BASE, find_pods
from tests.system.hosts.cluster import BuildCluster
from tests.system.hosts.pods import Pods

TRAINING = """
import os, sys
print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"], "on", os.environ["HOROVOD_HOSTNAME"])
sys.exit({code})
"""


@pytest.mark.parametrize("code", [0, pytest.param(75, marks=pytest.mark.nightly)])
def test_the_base_runs_the_training_on_each_of_its_pods(code: int, build: BuildCluster) -> None:
    """Its user has no account, no home and no privileges, and its root is read-only.

    Kubernetes starts a Job again, pod by pod, only where no pod has ended with 0.
    """
    (pod,) = find_pods(BASE)
    names = [f"train-{index}" for index in range(pod.job["completions"])]
    pods = Pods(build, *names)
    pods.cluster.write("train.py", TRAINING.format(code=code))
    running = [pods.start(pod, name, index) for index, name in enumerate(names)]
    finished = [{name: one.wait() for name, one in containers.items()} for containers in running]
    codes = [{name: one.returncode for name, one in containers.items()} for containers in finished]
    assert codes == [{"launcher": code, "agent": code}, {"launcher": 0, "agent": code}], finished
    shown = finished[0]["launcher"].stdout.splitlines()
    assert {f"[{rank}@{name}] rank {rank} of {len(names)} on {name}" for rank, name in enumerate(names)} >= set(shown)
    assert shown
