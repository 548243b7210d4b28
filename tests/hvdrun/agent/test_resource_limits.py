"""A host that cannot hold so many workers says which limit is in the way."""

import os
import resource
from pathlib import Path

import pytest

from hvdrun.agent.resource_limits import ResourceLimits, find_missing_cpus

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}
UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """This process' soft limits, which a test may change."""
    limits = {resource.RLIMIT_NOFILE: UNLIMITED, resource.RLIMIT_NPROC: UNLIMITED}
    monkeypatch.setattr(resource, "getrlimit", lambda number: (limits[number], UNLIMITED))
    return limits


@pytest.fixture
def room(tmp_path: Path) -> ResourceLimits:
    """A machine with 300 processes of at most 1,000, and a container with 10 of at most 500."""
    files = {
        "proc/loadavg": "0.1 0.2 0.3 2/300 4711",
        "proc/sys/kernel/pid_max": "1000",
        "proc/sys/kernel/threads-max": "90000",
        "groups/pids.max": "500",
        "groups/pids.current": "10",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return ResourceLimits(tmp_path / "proc", tmp_path / "groups")


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        (
            701,
            "701 workers need 717 processes and threads, those of the agent included, but kernel.pid_max leaves 700;",
        ),
        (475, "but pids.max of the control group leaves 490; raise it, or use fewer"),
    ],
)
def test_the_limit_that_is_in_the_way_is_named(room: ResourceLimits, workers: int, words: str) -> None:
    assert words in (room.find_shortage(workers) or "")
    assert room.find_shortage(474) is None


def test_a_machine_without_procfs_has_no_known_limit(tmp_path: Path) -> None:
    assert ResourceLimits(tmp_path, tmp_path).find_shortage(100_000) is None


def test_a_container_without_a_process_limit_has_no_shortage(room: ResourceLimits, tmp_path: Path) -> None:
    (tmp_path / "groups" / "pids.max").write_text("max\n", encoding="utf-8")
    assert room.find_shortage(684) is None


@pytest.mark.parametrize(
    ("line", "folder"),
    [("9:pids:/job/step", "pids/job"), ("0::/job/step", "job"), ("8:cpu,pids:/job/step", "pids/job/step")],
    ids=["first version, a group above", "second version, a group above", "a group of its own"],
)
def test_the_control_group_of_the_process_limits_its_tasks(
    room: ResourceLimits, tmp_path: Path, line: str, folder: str
) -> None:
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"1:cpu:/other\n{line}\n", encoding="utf-8")
    group = tmp_path / "groups" / folder
    group.mkdir(parents=True)
    (group / "pids.max").write_text("40\n", encoding="utf-8")
    (group / "pids.current").write_text("4\n", encoding="utf-8")
    assert room.find_shortage(20) is None
    assert "but pids.max of the control group leaves 36; " in (room.find_shortage(21) or "")


def test_each_worker_needs_three_files_of_the_agent(room: ResourceLimits, limits: dict[int, int]) -> None:
    limits[resource.RLIMIT_NOFILE] = 400
    assert room.find_shortage(100) is None
    assert "200 workers need 664 open files, but `ulimit -Hn` is 400" in (room.find_shortage(200) or "")


@pytest.mark.parametrize(("uid", "fits"), [(0, True), (1000, False)])
def test_the_limit_of_a_user_binds_all_users_but_root_and_counts_what_runs(
    room: ResourceLimits,
    limits: dict[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    *,
    fits: bool,
) -> None:
    (tmp_path / "proc" / "4711").mkdir()  # of the user that runs the test
    fields = " ".join(["S", *["1"] * 16, "20", "0"])
    (tmp_path / "proc" / "4711" / "stat").write_text(f"4711 (a) b) {fields}\n", encoding="utf-8")
    limits[resource.RLIMIT_NPROC] = 50
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert room.find_shortage(14) is None
    assert ("but `ulimit -u` leaves 30;" in (room.find_shortage(15) or "")) is not fits


def test_this_machine_can_hold_one_worker() -> None:
    assert ResourceLimits().find_shortage(1) is None


def test_fewer_cpus_than_the_slurm_job_has_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert find_missing_cpus({**JOB, "SLURMD_NODENAME": "n2"}, 4) is None
    said = find_missing_cpus({**JOB, "SLURMD_NODENAME": "n2"}, 1)
    assert said is not None
    assert said.startswith("the workers on n2 may use 1 of the 4 CPUs that Slurm job 17 has there")
    assert find_missing_cpus({**JOB, "SLURMD_NODENAME": "other"}, 1) is None
    assert find_missing_cpus({"SLURM_JOB_ID": "17"}, 1) is None
