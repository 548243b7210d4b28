"""The kernel's count of kills, or the worker's size, shows whether a worker was killed because memory ran out."""

import resource
from pathlib import Path

import pytest

from hvdrun.agent.memory_kills import MemoryKills

GIB = 1 << 30
SECOND_VERSION = "0::/job/agent\n", "sys/fs/cgroup/job/agent", "memory.events", "memory.max"
FIRST_VERSION = (
    "4:cpu:/\n3:memory:/job\n0::/\n",
    "sys/fs/cgroup/memory/job",
    "memory.oom_control",
    "memory.limit_in_bytes",
)
# In a container the mounted cgroup file system begins at the container's own cgroup.
SECOND_IN_A_CONTAINER = "0::/docker/4711\n", "sys/fs/cgroup", "memory.events", "memory.max"
FIRST_IN_A_CONTAINER = "3:memory:/docker/4711\n", "sys/fs/cgroup/memory", "memory.oom_control", "memory.limit_in_bytes"


class Host:
    """A folder that stands for the root of a host with such a cgroup; `count` writes what the kernel counts."""

    def __init__(self, root: Path, cgroups: str, folder: str, events: str, limit: str) -> None:
        self.root = root
        self._events = root / folder / events
        (root / "proc" / "self").mkdir(parents=True)
        (root / "proc" / "self" / "cgroup").write_text(cgroups, encoding="utf-8")
        (root / "proc" / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n", encoding="utf-8")
        if folder:
            self._events.parent.mkdir(parents=True)
            (self._events.parent / limit).write_text(f"{2 * GIB}\n", encoding="utf-8")
            self.count(5)

    def count(self, kills: int) -> None:
        """The kernel has killed this number of processes since the machine booted."""
        self._events.write_text(f"low 0\noom_kill_disable 0\noom_kill {kills}\n", encoding="utf-8")


@pytest.mark.parametrize("cgroup", [SECOND_VERSION, SECOND_IN_A_CONTAINER, FIRST_VERSION, FIRST_IN_A_CONTAINER])
def test_a_count_that_has_grown_shows_that_memory_ran_out(tmp_path: Path, cgroup: tuple[str, str, str, str]) -> None:
    host = Host(tmp_path, *cgroup)
    kills = MemoryKills(tmp_path)
    host.count(7)  # two more than before: they explain two ends, and no third one
    said = kills.explain(-9, 0)
    assert said.startswith("The kernel killed it because memory ran out: oom_kill of its memory cgroup has grown by 2")
    assert said.endswith(f"(/{cgroup[1]}, limit 2.00 GiB).")
    assert kills.explain(1, 0).startswith("The kernel killed a process of this job on its host because memory ran out")
    assert kills.explain(1, 0) == ""
    assert kills.explain(-9, 0).startswith("The kernel did not kill it for memory")


@pytest.mark.parametrize("returncode", [-9, 137])
def test_a_count_that_has_not_grown_shows_that_another_process_sent_the_signal(tmp_path: Path, returncode: int) -> None:
    Host(tmp_path, *SECOND_VERSION)
    assert MemoryKills(tmp_path).explain(returncode, 15 * GIB).startswith("The kernel did not kill it for memory")


def test_a_limit_of_processor_time_may_have_sent_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Host(tmp_path, *SECOND_VERSION)
    kills = MemoryKills(tmp_path)
    assert "processor time" not in kills.explain(-9, 0)
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_CPU: (3, 7)}.get)
    assert "it reached its limit of 7 s of processor time (ulimit -t), or the script itself" in kills.explain(-9, 0)


@pytest.mark.parametrize("returncode", [0, 1, -15, -11])
def test_another_end_needs_no_explanation(tmp_path: Path, returncode: int) -> None:
    Host(tmp_path, *SECOND_VERSION)
    assert MemoryKills(tmp_path).explain(returncode, 15 * GIB) == ""


def test_without_a_count_the_resident_size_shows_what_is_probable(tmp_path: Path) -> None:
    Host(tmp_path, "0::/\n", "", "", "")
    kills = MemoryKills(tmp_path)
    said = "Probably the kernel killed it because memory ran out: it had 15.0 of this host's 16.0 GiB resident."
    assert kills.explain(-9, 15 * GIB) == said
    assert kills.explain(-9, 2 * GIB) == ""
    assert kills.explain(-15, 15 * GIB) == ""


def test_a_host_without_memory_counters_explains_no_kill(tmp_path: Path) -> None:
    assert MemoryKills(tmp_path).explain(-9, GIB) == ""
