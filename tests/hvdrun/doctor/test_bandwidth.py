"""`hvdrun doctor --test`: the job that measures, and what its figures say."""

import json
import re
from collections.abc import Mapping

import pytest

from hvdrun.cli.program import main
from hvdrun.doctor.bandwidth import Measured, Pair, choose_backends, make_command, measure
from hvdrun.doctor.program import complete, find_objection, read_request
from hvdrun.doctor.visits import Examination
from hvdrun.hosts.findings import Finding, Host
from hvdrun.spec.facts import Facts
from rendezvous.bootstrap import Backend

pytestmark = pytest.mark.pure


def pairs(seconds: Mapping[str, float]) -> Measured:
    """What these pairs, named by two letters, have reached."""
    found = tuple(Pair((name[0], name[1]), value, 0.001) for name, value in seconds.items())
    return Measured(Backend.GLOO, 64_000_000, 3, 0.1, found)


def test_figures_are_those_of_the_hosts_of_the_ranks() -> None:
    printed = {
        "bytes": 64_000_000,
        "hosts": ["a", "a", "b"],
        "seconds": 0.5,
        "pairs": [{"ranks": [0, 2], "seconds": 0.1, "latency": 0.001}],
        "has_ucc": True,
    }
    found = Measured.read(Backend.NCCL, json.dumps(printed))
    assert found.pairs == (Pair(("a", "b"), 0.1, 0.001),)
    assert found.has_ucc
    line = "all_reduce of 64 MB by nccl, 3 workers: 500 ms; the only pair: a and b, 100 ms (0.64 GB/s)"
    assert found.describe() == line


def test_workers_of_one_host_are_named_by_their_ranks() -> None:
    printed = {"bytes": 4, "hosts": ["a", "a"], "seconds": 1, "has_ucc": False}
    pair = {"ranks": [0, 1], "seconds": 1, "latency": 1}
    found = Measured.read(Backend.GLOO, json.dumps({**printed, "pairs": [pair]}))
    assert found.pairs[0].names == ("rank 0", "rank 1")


def test_the_slowest_pair_is_named() -> None:
    line = pairs({"ab": 0.1, "ac": 0.2, "bc": 0.1}).describe()
    assert line.endswith("; the slowest of 3 pairs: a and c, 200 ms (0.32 GB/s); half of them reach 0.64 GB/s")


def test_a_single_worker_has_no_pair() -> None:
    found = pairs({})
    assert found.describe() == "all_reduce of 64 MB by gloo, 3 workers: 100 ms"
    assert found.find_slow() == []


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ({"ab": 0.1, "ac": 0.29, "bc": 0.2}, None),
        ({"ab": 0.1, "ac": 0.4}, None),
        ({"ab": 0.1, "ac": 0.4, "bc": 0.1}, "a and c exchange 0.16 GB/s by gloo, and other pairs 0.64 GB/s"),
        (
            {"ab": 0.1, "ac": 0.4, "bc": 0.8},
            "c exchanges at most 0.16 GB/s with 2 others by gloo, and other pairs 0.64 GB/s",
        ),
        (
            {"ab": 0.4, "ac": 0.1, "ad": 0.1, "bc": 0.1, "bd": 0.1, "cd": 0.8},
            "c and d exchange 0.08 GB/s by gloo, and other pairs 0.64 GB/s",
        ),
    ],
    ids=["alike", "two pairs", "a pair", "a host", "two pairs apart"],
)
def test_a_pair_or_a_host_that_is_much_slower_is_a_finding(seconds: dict[str, float], sentence: str | None) -> None:
    assert [finding.what for finding in pairs(seconds).find_slow()] == ([] if sentence is None else [sentence])


def test_the_job_that_measures_has_the_ways_to_its_hosts_and_all_their_slots() -> None:
    words = ["-np", "1", "--min-np", "1", "-H", "localhost:3", "-p", "2222", "-x", "A=1", "--output-filename", "logs"]
    asked = read_request([*words, "--test", "true"])
    assert not isinstance(asked, str)
    assert asked.tests
    command = make_command(asked.typed, complete(asked.spec), Backend.GLOO)
    kept = ["-p", "2222", "-x", "A=1", "-np", "3", "-H", "localhost:3"]
    rest = ["--no-prefix", "--backend", "gloo", "python", "-m", "worker_runtime.torch.bandwidth"]
    assert command == ["hvdrun", *kept, *rest]


def test_all_backends_that_each_host_has_are_chosen_or_the_requested_one() -> None:
    card, none = Host(Facts(accelerators=2), slots=2), Host(Facts(), slots=2)
    assert choose_backends({"a": card, "b": card}, None) == [Backend.GLOO, Backend.NCCL]
    assert choose_backends({"a": card, "b": none}, None) == [Backend.GLOO]
    assert choose_backends({"a": card}, Backend.UCC) == [Backend.UCC]


def test_hosts_that_cannot_run_a_job_are_not_measured() -> None:
    asked = read_request(["-H", "localhost:1"])
    assert not isinstance(asked, str)
    has_torch = Host(Facts(packages={"torch": "2.13.0"}))
    assert find_objection(Examination(), asked.spec) == "localhost could not be visited"
    assert find_objection(Examination({"localhost": Host(Facts())}), asked.spec) == "localhost has no torch"
    assert find_objection(Examination({"localhost": has_torch}), asked.spec) == ""
    two = read_request(["-H", "localhost:1,b:1"])
    assert not isinstance(two, str)
    found = Examination({"localhost": has_torch, "b": has_torch})
    assert find_objection(found, two.spec) == "their connections could not be measured"


@pytest.mark.inprocess
def test_a_job_that_fails_is_a_finding_with_its_command() -> None:
    words = ["hvdrun", "-np", "1", "--backend", "gloo", "false"]
    found = measure(words)
    assert isinstance(found, Finding)
    assert re.fullmatch(
        r"all_reduce by gloo failed: rank 0 on localhost \(slot 0\) failed.* after .* s: exit code 1", found.what
    )
    assert found.remedy == "hvdrun -np 1 --backend gloo false"


@pytest.mark.system
def test_workers_of_one_host_are_measured(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--test", "-H", "localhost:2", "--backend", "gloo"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["tests"]
    assert (found["backend"], found["bytes"], found["workers"]) == ("gloo", 64_000_000, 2)
    assert [pair["between"] for pair in found["pairs"]] == [["rank 0", "rank 1"]]
    assert found["pairs"][0]["milliseconds"] > 0


def test_a_job_of_one_worker_measures_no_pair() -> None:
    found = Measured(Backend.GLOO, 64_000_000, 1, 0.001, ())
    assert found.describe() == "all_reduce of 64 MB by gloo, 1 worker: 1 ms"
