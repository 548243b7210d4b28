"""What `hvdrun doctor` finds: each fault is named with its host and its remedy, and nothing else is."""

from dataclasses import replace

import pytest

from hvdrun.hosts.findings import Finding, Host, diagnose
from hvdrun.spec.facts import Facts, Leftover

GIBIBYTE = 1 << 30
HEALTHY = Facts(
    name="node",
    python="3.11.7",
    executable="/usr/bin/python3",
    packages={"torch": "2.13.0+cu130", "numpy": "1.26.4", "cloudpickle": "3.1.2", "nvidia-nccl-cu13": "2.28.9"},
    cuda="13.0",
    driver="580.95",
    accelerators=4,
    cpus=32,
    memory=64 * GIBIBYTE,
    shared_memory=32 * GIBIBYTE,
    free={"/work": 90 * GIBIBYTE, "/tmp": 20 * GIBIBYTE},  # noqa: S108 - only a name; it is not opened
    files=1 << 20,
    processes=100_000,
)


def visit(**changes: object) -> list[Finding]:
    """The findings about three hosts, of which b has these facts, or these fields of `Host`."""
    hosts = {name: Host(HEALTHY, slots=4, is_here=name == "a") for name in "abc"}
    of_host = {name: changes.pop(name) for name in ("slots", "clock_offset", "uncertainty") if name in changes}
    hosts["b"] = replace(hosts["b"], facts=replace(HEALTHY, **changes), **of_host)  # type: ignore[arg-type]  # any field
    return diagnose(hosts)


def change(**packages: str | None) -> dict[str, str]:
    """The packages of a healthy host with these versions in their place; None removes a package."""
    changed = {**HEALTHY.packages, **{name.replace("_", "-"): version for name, version in packages.items()}}
    return {name: version for name, version in changed.items() if version is not None}


def test_healthy_hosts_have_no_findings() -> None:
    assert visit() == []
    assert diagnose({}) == []


FAULTS: list[tuple[dict[str, object], str, str]] = [
    (
        {"python": "3.12.1"},
        "Python 3.12 on b, but 3.11 on a and c",
        "hvdrun --remote-python PATH, where PATH is Python 3.11",
    ),
    (
        {"packages": change(torch="2.12.0")},
        "torch 2.12.0 on b, but 2.13.0+cu130 on a and c",
        "pip install torch==2.13.0",
    ),
    ({"packages": change(torch=None)}, "torch is missing on b; a and c have it", "python -m pip install torch==2.13.0"),
    ({"packages": change(numpy="2.0.0")}, "numpy 2.0.0 on b, but 1.26.4 on", "pip install numpy==1.26.4"),
    ({"packages": change(cloudpickle="2.0")}, "cloudpickle 2.0 on b, but 3.1.2 on", "pip install cloudpickle==3.1.2"),
    (
        {"packages": change(nvidia_nccl_cu13="2.20")},
        "NCCL 2.20 on b, but 2.28.9 on",
        "the torch that brings NCCL 2.28.9",
    ),
    ({"driver": "580.12"}, "NVIDIA's driver 580.12 on b, but 580.95 on", "install the driver 580.95"),
    ({"cuda": ""}, "torch 2.13.0+cu130 on b is built without CUDA", "pip install --force-reinstall torch"),
    ({"slots": 8}, "b has 8 slots, but 4 accelerators", "hvdrun -H b:4"),
    ({"busy": {"2": 9 * GIBIBYTE}}, "another program uses 9.0 GiB of accelerator 2 on b", "ssh b nvidia-smi"),
    ({"accelerators": 0}, "no accelerator is visible on b; a and c have some", "ssh b nvidia-smi"),
    ({"free": {"/work": 5 << 20}}, "/work on b has only 5 MiB left", "ssh b 'df -h /work'"),
    ({"shared_memory": 64 << 20}, "shm on b has only 64 MiB", "docker run --shm-size=8g"),
    ({"memory": GIBIBYTE}, "1.0 GiB of memory is free on b, for 4 workers", "ssh b 'ps aux --sort=-rss | head'"),
    ({"files": 1024}, "a process on b may open only 1,024 files", "ulimit -Hn"),
    ({"processes": 100}, "only 100 more processes and threads may start on b, for 4 workers", "pids.max"),
    ({"clock_offset": 90.0}, "the clock of b is 90 s ahead of this machine's", "ssh b 'timedatectl set-ntp true'"),
    ({"clock_offset": -90.0, "uncertainty": 30.0}, "the clock of b is 90 s behind this machine's", "set-ntp"),
    ({"knows_name": False}, "the host b has no address for its own name 'node'", "echo 127.0.1.1 node >> /etc/hosts"),
    ({"unreadable": ("/secret",)}, "/secret on PATH of b cannot be read by this user", "leave it out of PATH"),
    (
        {"leftovers": (Leftover(7, "python new.py", 60.0), Leftover(8, "python old.py", 7200.0))},
        "2 processes of earlier jobs on b, the oldest with pid 8, since 2 h: python old.py",
        "hvdrun doctor --clean",
    ),
    ({"folders": ("/tmp/hvdrun-1",)}, "1 folder of killed agents on b: /tmp/hvdrun-1", "hvdrun doctor --clean"),  # noqa: S108 - only a name; it is not opened
]


@pytest.mark.parametrize(("changes", "what", "remedy"), FAULTS, ids=[what for _, what, _ in FAULTS])
def test_a_fault_is_the_only_finding(changes: dict[str, object], what: str, remedy: str) -> None:
    (finding,) = visit(**changes)
    assert what in finding.what
    assert finding.hosts == ("b",)
    assert remedy in finding.remedy


def test_a_driver_that_is_too_old_for_torch_is_found_on_all_hosts() -> None:
    old = Host(replace(HEALTHY, driver="535.1"))
    assert [finding.what for finding in diagnose({"a": old, "b": old})] == [
        f"NVIDIA's driver 535.1 on {name} is too old for the CUDA 13.0 of its torch" for name in "ab"
    ]


def test_equal_hosts_without_torch_have_no_findings() -> None:
    bare = Host(replace(HEALTHY, packages={}, cuda="", driver="", accelerators=0))
    assert diagnose({"a": bare, "b": bare}) == []


def test_a_host_that_could_not_be_examined_is_the_only_finding() -> None:
    (finding,) = visit(failure="PermissionError: /proc", python="", packages={}, accelerators=0)
    assert finding == Finding("b could not be examined (PermissionError: /proc)", ("b",), "ssh b 'hvdrun doctor'")


def test_of_two_different_hosts_the_first_one_is_taken_as_right() -> None:
    hosts = {"a": Host(HEALTHY), "b": Host(replace(HEALTHY, packages=change(torch="2.12.0")))}
    (finding,) = diagnose(hosts)
    assert finding.hosts == ("b",)


def test_many_hosts_are_summarized() -> None:
    hosts = {f"n{number}": Host(HEALTHY) for number in range(9)}
    hosts["n8"] = Host(replace(HEALTHY, python="3.12.0"))
    (finding,) = diagnose(hosts)
    assert finding.what == "Python 3.12 on n8, but 3.11 on n0, n1, n2, n3 and 4 more"


def test_a_clock_that_may_be_right_is_no_finding() -> None:
    assert visit(clock_offset=20.0, uncertainty=19.0) == []
