"""The containers of deploy/kubernetes run as they are, in pods that the Job controller kills and makes anew."""

import time

import pytest

from tests.deploy.kubernetes.manifests import BASE, ELASTIC, find_pods
from tests.deploy.samples import PARTIAL, check_sample
from tests.lab.host import Host
from tests.system.hosts.cluster import BuildCluster
from tests.system.hosts.pods import Pods, evict
from tests.system.hosts.training import FEATURES, LIMIT_SECONDS, SCRIPT, Training

TRAINING = """
import os, sys
print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"], "on", os.environ["HOROVOD_HOSTNAME"])
sys.exit({code})
"""


@pytest.mark.sample
@pytest.mark.parametrize("code", [0, pytest.param(75, marks=pytest.mark.nightly)])
def test_the_base_runs_the_training_on_each_of_its_pods(code: int, build: BuildCluster, *, rewrite: bool) -> None:
    """The pod's user has no account, home or privileges, and its root is read-only; the README shows its output.

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
    if code == 0:
        launcher = finished[0]["launcher"]
        check_sample("kubernetes", launcher.stderr + launcher.stdout, without=PARTIAL, rewrite=rewrite)


ELASTIC_TRAINING = """
import runpy, sys
sys.argv = [{script!r}, {notes!r}, {features!r}, "--until", {notes!r} + "/stop", "--every", "1"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class ElasticPods(Training):
    """The elastic job, with all its pods."""

    def __init__(self, build: BuildCluster) -> None:
        coordinator, self._agent = find_pods(ELASTIC)
        self.names = [f"train-agent-0-{index}" for index in range(self._agent.job["completions"])]
        self._pods = Pods(build, "train-coordinator-0-0", *self.names)
        self._cluster = self._pods.cluster
        self.notes = self._cluster.directory / "notes"
        self.notes.mkdir()
        self.notes.chmod(0o777)
        words = {"script": str(SCRIPT), "notes": str(self.notes), "features": FEATURES}
        self._cluster.write("train.py", ELASTIC_TRAINING.format(**words))
        self.running = self._pods.start(coordinator, "train-coordinator-0-0")["launcher"]
        self.agents = {name: self._pods.start(self._agent, name)["agent"] for name in self.names}
        self.await_members(*self.names)

    def come_back(self, name: str, after_seconds: float) -> None:
        """Make the pod anew, and wait until all train together."""
        time.sleep(after_seconds)
        self.agents[name] = self._pods.make_again(self._agent, name)["agent"]
        self.await_members(*self.names)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_pods_that_are_killed_and_come_back_under_their_name_cost_no_step(build: BuildCluster) -> None:
    """The first is back before its lease is over, the second long after; the third is evicted, and not lost."""
    training = ElasticPods(build)
    first, second, third, fourth = training.names
    for name, seconds in ((first, 1.0), (third, 60.0)):
        training.lose(name, Host.destroy, *(other for other in training.names if other != name))
        training.come_back(name, seconds)
    before = training.running.stderr.text()
    evict(training.agents[fourth])
    assert training.agents[fourth].wait(LIMIT_SECONDS).returncode == 75
    training.await_members(first, second, third)
    assert "was lost" not in training.running.stderr.text()[len(before) :]
    training.come_back(fourth, 0.0)
    assert len(training.end(*training.names)[-1].members[0]) == len(training.names)
    assert [one.wait(LIMIT_SECONDS).returncode for one in training.agents.values()] == [0] * len(training.names)
