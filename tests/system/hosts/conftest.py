"""What every test with several hosts gets: a lab, and a check that no host keeps anything of the job."""

import contextlib
from collections.abc import Iterable, Iterator

import pytest

from tests.lab.fixtures import BuildLab, lab, labs
from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster

__all__ = ["lab", "labs"]


@pytest.fixture(autouse=True)
def hvdrun() -> None:
    """Nothing: here hvdrun runs on the launcher of a lab, not on this machine."""


@pytest.fixture
def build(lab: BuildLab) -> Iterator[BuildCluster]:
    """Builds clusters, each with a lab that no other test uses meanwhile; one is called like hvdrun.

    After the test no host may keep anything of the job: no process, no listening socket, no file in its /tmp or
    /dev/shm. Only a test that has failed ends while its hvdrun runs; it is not blamed for that.
    """
    clusters: list[Cluster] = []

    def build_one(hosts: int | Iterable[HostPlan] = 2, *, launcher: HostPlan | None = None) -> Cluster:
        clusters.append(Cluster(lab(hosts, launcher=launcher)))
        return clusters[-1]

    with contextlib.ExitStack() as stack:
        yield build_one
        for cluster in clusters:
            stack.callback(cluster.close)
        left = [trace for cluster in clusters if not cluster.has_running for trace in cluster.settle()]
        if left:
            pytest.fail("left behind by this test:\n" + "\n".join(left), pytrace=False)


@pytest.fixture
def pair(build: BuildCluster) -> Cluster:
    """host1 and host2."""
    return build(2)
