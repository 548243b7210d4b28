"""Nothing of a lab outlives it, however its owner, its keeper or its hosts end."""

import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.lab import folder
from tests.lab.fixtures import BuildLab
from tests.lab.lab import ROOT, Lab
from tests.lab.plan import HostPlan
from tests.lab.process import find_processes
from tests.lab.requirements import require_lab
from tests.waiting import LIMIT_SECONDS

ALL_PROCESSES = 8  # the keeper, three hosts, two servers, two that sleep
# The owner of a lab with processes on its hosts: prints what the test looks for, and waits.
OWNER = """
import sys
from tests.lab.lab import Lab
with Lab(2) as lab:
    for host in lab:
        host.start(["setsid", "--fork", "sleep", "62"]).wait()
    print(lab.folder, lab.pid, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Traces:
    """What a lab has put onto this machine: its folder, and its processes with a descriptor of each."""

    folder: Path
    processes: dict[int, str]

    def settle(self) -> None:
        """Wait until all of the lab's processes have ended."""
        for descriptor, name in self.processes.items():
            ended = select.select([descriptor], [], [], LIMIT_SECONDS)[0]
            os.close(descriptor)
            assert ended, f"{name} is left"
        assert self.folder.name not in Path("/proc/self/mounts").read_text(encoding="utf-8")


Owned = tuple["subprocess.Popen[str]", int, Traces]  # an owner, its keeper, and what there is of its lab


def trace(path: Path, keeper: int) -> Traces:
    """What there is of a lab now: its keeper, the first process of each host, and what runs there."""
    firsts = psutil.Process(keeper).children()
    inside = {one.pid: str(one) for first in firsts for one in find_processes(first.pid)}
    pids = {keeper: "the keeper", **{first.pid: str(first) for first in firsts}, **inside}
    return Traces(path, {os.pidfd_open(pid): name for pid, name in pids.items()})


def kill_keeper(owner: "subprocess.Popen[str]", keeper: int) -> None:
    os.kill(keeper, signal.SIGKILL)
    owner.communicate("")


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owned]:
    """A lab in a place that no other test's new lab sweeps."""
    require_lab()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        path, keeper = owner.stdout.readline().split()
        traces = trace(Path(path), int(keeper))
        assert len(traces.processes) == ALL_PROCESSES, traces
        yield owner, int(keeper), traces


@pytest.mark.parametrize(
    "act",
    [
        lambda owner, _: owner.communicate(""),
        pytest.param(lambda owner, _: owner.terminate(), marks=pytest.mark.nightly),
        lambda owner, _: owner.kill(),
        kill_keeper,
    ],
    ids=["the owner's input ends", "the owner is asked to end", "the owner is killed", "the keeper is killed"],
)
def test_a_lab_does_not_outlive_its_owner_or_keeper(
    act: Callable[["subprocess.Popen[str]", int], None], owned: Owned
) -> None:
    owner, keeper, traces = owned
    act(owner, keeper)
    traces.settle()
    owner.wait(LIMIT_SECONDS)
    assert not traces.folder.exists()


def test_the_next_lab_removes_the_folder_of_one_whose_owner_and_keeper_were_killed(owned: Owned) -> None:
    owner, keeper, traces = owned
    os.kill(keeper, signal.SIGKILL)
    owner.kill()
    traces.settle()
    owner.wait(LIMIT_SECONDS)
    assert traces.folder.exists()
    folder.sweep()  # the next lab's first act
    assert not traces.folder.exists()


def test_a_lab_that_is_in_use_is_not_swept_away(lab: BuildLab) -> None:
    hosts = lab(1)
    folder.sweep()
    assert hosts.folder.exists()


def test_a_folder_is_swept_once_no_process_locks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    paths = [tmp_path / f"{folder.PREFIX}{name}" for name in ("locked", "new", "old", "left")]
    for path in paths:
        path.mkdir()
    for path in (paths[0], paths[3]):
        (path / "lock").touch()
    os.utime(paths[2], (0, 0))
    with (paths[0] / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.sweep()
    assert [path.exists() for path in paths] == [True, True, False, False]


def test_a_lab_closes_though_commands_run_and_hosts_are_frozen_or_gone() -> None:
    require_lab()
    with Lab(3) as hosts:
        traces = trace(hosts.folder, hosts.pid)
        running = [host.start(["bash", "-c", "trap '' INT TERM HUP; sleep 60 & wait"]) for host in hosts]
        hosts["host1"].freeze()
        hosts["host2"].destroy()
    traces.settle()
    assert not traces.folder.exists()
    assert [process.returncode for process in running] == [-signal.SIGKILL] * 3


def test_a_lab_that_cannot_be_built_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_lab()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # there are no labs of others
    impossible = HostPlan("a", devices=("a-name-too-long-for-a-device",))
    with pytest.raises(OSError, match="a-name-too-long-for-a-device"), Lab([impossible]):
        pass
    assert folder.find_folders() == []
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info)]


@pytest.mark.nightly
def test_the_command_builds_a_lab_and_removes_it_at_the_end_of_its_input() -> None:
    require_lab()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.lab", "up", "1"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        assert command.stdin is not None
        heading, shell = command.stdout.readline(), command.stdout.readline()
        assert heading.startswith("host1: 10.77.0.1 ")
        entered = subprocess.run(
            ["bash", "-c", shell], input="hostname; pwd", capture_output=True, text=True, timeout=20, check=True
        )
        name, home = entered.stdout.split()
        assert name == "host1"
        command.communicate("")
        assert command.returncode == 0
        assert not Path(home).exists()
