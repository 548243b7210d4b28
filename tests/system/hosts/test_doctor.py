"""`hvdrun doctor` visits the hosts of a lab: it names what is wrong with them, changes nothing, and leaves nothing."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster


def examine(cluster: Cluster, *words: str, code: int) -> dict[str, Any]:
    """What `hvdrun doctor` prints as JSON."""
    finished = cluster.start_on(cluster.lab.launcher, ["hvdrun", "doctor", "--json", *words]).wait()
    assert finished.returncode == code, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


def list_what(found: dict[str, Any]) -> Sequence[str]:
    """The sentences of its findings."""
    return [finding["what"] for finding in found["findings"]]


def test_healthy_hosts_are_described_and_connected(pair: Cluster) -> None:
    found = examine(pair, "-H", "host1:2,host2:1", code=0)
    assert list_what(found) == []
    assert {name: facts["slots"] for name, facts in found["hosts"].items()} == {"host1": 2, "host2": 1}
    assert {(pair["from"], pair["to"]) for pair in found["pairs"]} == {("host1", "host2"), ("host2", "host1")}


def test_each_fault_of_a_host_is_named_and_the_others_are_examined(build: BuildCluster) -> None:
    cluster = build([HostPlan(f"host{n}") for n in (1, 2, 3, 4)])
    cluster["host2"].sshd.stop()
    cluster.lab.part("host3", "host4")
    found = examine(cluster, "-H", "host1:1,host2:1,host3:1,host4:1,hots1:1", code=3)
    assert list(found["hosts"]) == ["host1", "host3", "host4"]
    refused, misspelled, parted = list_what(found)
    assert "the host 'host2' refused the ssh connection to host2 port 22" in refused
    assert "the host 'hots1' cannot be found (name or service not known): did you mean host1?" in f"{misspelled}?"
    assert "host3 does not reach host4" in parted


def test_leftovers_of_an_earlier_job_are_found_and_removed(pair: Cluster) -> None:
    leave = "HVD_JOB=earlier setsid sleep 1234 </dev/null >/dev/null 2>&1 &"
    pair.start_on(pair["host2"], ["sh", "-c", leave]).wait()
    (what,) = list_what(examine(pair, "-H", "host1:1,host2:1", code=3))
    assert what.startswith("1 process of earlier jobs on host2, the oldest with pid ")
    assert what.endswith(" s: sleep 1234")
    examine(pair, "--clean", "-H", "host1:1,host2:1", code=3)
    assert list_what(examine(pair, "-H", "host1:1,host2:1", code=0)) == []


def test_a_job_that_starts_names_what_differs_between_its_hosts(pair: Cluster) -> None:
    """Of torch the agent reads the version that is installed, and imports nothing."""
    installed = pair.directory / "other" / "torch-0.1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n", encoding="utf-8")
    prefix = f'[ "$(hostname)" != host2 ] || export PYTHONPATH={installed.parent}'
    finished = pair("-np", "2", "-H", "host1:1,host2:1", "--remote-prefix", prefix, "sleep", "3")
    assert finished.returncode == 0, finished.stderr
    assert re.fullmatch(
        r"hvdrun: torch 0\.1 on host2, but \S+ on host1: python -m pip install torch==[\d.]+\n", finished.stderr
    )


@pytest.mark.nightly
def test_a_slow_host_is_measured_and_named(build: BuildCluster) -> None:
    cluster = build([HostPlan(f"host{n}") for n in (1, 2, 3)])
    cluster["host2"].network.slow(40_000_000)
    found = examine(cluster, "--test", "-H", "host1:1,host2:1,host3:1", code=3)
    # On a busy machine a host may also be slow to connect.
    (what,) = (what for what in list_what(found) if "exchange" in what)
    assert what.startswith("host2 exchanges at most 0.0")
    (measured,) = found["tests"]
    assert [pair["between"] for pair in measured["pairs"]] == [
        ["host2", "host3"],
        ["host1", "host3"],
        ["host1", "host2"],
    ]
