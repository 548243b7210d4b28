"""Nothing of a lab outlives it, however its owner, its keeper or its hosts end."""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab import folder
from tests.lab.fixtures import BuildLab
from tests.lab.host import Host
from tests.lab.lab import ROOT, Lab
from tests.lab.plan import HostPlan
from tests.lab.requirements import require_lab

LIMIT_SECONDS = 20.0
ALL_PROCESSES = 8
_KINDS = ("net", "mnt", "pid", "uts")  # of namespaces
# An owner with processes on its hosts; it says what there is to look for, and waits.
OWNER = """
import sys
from tests.lab.lab import Lab
with Lab(2) as lab:
    lab.launcher.run(["ssh", "-o", "BatchMode=yes", "host1", "setsid sleep 62 >/dev/null 2>&1 & exit 0"])
    lab["host2"].start(["setsid", "sleep", "62"])
    print(lab.folder, lab.pid, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Traces:
    """What a lab has put onto this machine: all processes with its namespaces, and its folder.

    held: descriptors of the namespaces: once they are gone, another test's new lab may have their numbers.
    """

    folder: Path
    pids: frozenset[int]
    namespaces: frozenset[str]
    held: tuple[int, ...]

    def processes_left(self) -> list[str]:
        """The lab's processes that run."""
        return [f"{pid} {_read_command(pid)}" for pid in _list_pids() if _name_namespaces(pid) & self.namespaces]

    def let_go(self) -> None:
        """Give the namespaces' numbers back."""
        for descriptor in self.held:
            os.close(descriptor)

    def settle(self) -> None:
        """Wait until all of the lab's processes have ended; what has not is said."""
        for pid in self.pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            ended = select.select([descriptor], [], [], LIMIT_SECONDS)[0]
            os.close(descriptor)
            assert ended, f"{pid} {_read_command(pid)} is left"
        assert self.processes_left() == []
        self.let_go()
        assert self.folder.name not in Path("/proc/self/mounts").read_text(encoding="utf-8")


def trace(path: Path, keeper: int) -> Traces:
    """What there is of a lab, now."""
    own = _name_namespaces(os.getpid())
    kept = [keeper, *(pid for pid in _list_pids() if _find_parent(pid) == keeper)]
    namespaces = frozenset(name for pid in kept for name in _name_namespaces(pid)) - own
    assert namespaces
    pids = frozenset(pid for pid in _list_pids() if _name_namespaces(pid) & namespaces)
    return Traces(path, pids, namespaces, tuple(_hold_namespaces(kept)))


def trace_all(path: Path, keeper: int) -> Traces:
    """The same, once all is there that OWNER has started: the keeper, three hosts, two servers, two that sleep."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while len((traces := trace(path, keeper)).pids) < ALL_PROCESSES:
        traces.let_go()
        assert time.monotonic() < deadline, traces
        time.sleep(0.01)  # a process may be between fork and exec
    return traces


def _list_pids() -> list[int]:
    return sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _name_namespaces(pid: int) -> frozenset[str]:
    try:
        return frozenset(str((Path(f"/proc/{pid}/ns") / kind).readlink()) for kind in _KINDS)
    except OSError:
        return frozenset()


def _hold_namespaces(pids: list[int]) -> Iterator[int]:
    for pid in pids:
        for kind in _KINDS:
            with contextlib.suppress(OSError):  # a helper of the keeper's, which has ended
                yield os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)


def _find_parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return None


def _read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    except OSError:
        return "(ended)"


def kill_owner(owner: "subprocess.Popen[str]", _: int) -> None:
    owner.kill()


def end_owner(owner: "subprocess.Popen[str]", _: int) -> None:
    assert owner.stdin is not None
    owner.stdin.close()


def terminate_owner(owner: "subprocess.Popen[str]", _: int) -> None:
    owner.terminate()


def kill_keeper(owner: "subprocess.Popen[str]", keeper: int) -> None:
    os.kill(keeper, signal.SIGKILL)
    end_owner(owner, keeper)


def kill_both(owner: "subprocess.Popen[str]", keeper: int) -> None:
    os.kill(keeper, signal.SIGKILL)
    owner.kill()


@pytest.mark.parametrize("act", [end_owner, terminate_owner, kill_owner, kill_keeper, kill_both])
def test_nothing_outlives_a_labs_owner_or_keeper(
    act: Callable[["subprocess.Popen[str]", int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a place of its own: another test's new lab would sweep the folder away."""
    require_lab()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        path, keeper = owner.stdout.readline().split()
        traces = trace_all(Path(path), int(keeper))
        act(owner, int(keeper))
        traces.settle()
        owner.wait(LIMIT_SECONDS)
        if act is kill_both:
            assert traces.folder.exists()
            folder.sweep()  # the next lab's first act
        assert not traces.folder.exists()


def test_a_lab_that_is_in_use_is_not_swept_away(lab: BuildLab) -> None:
    hosts = lab(1)
    folder.sweep()
    assert hosts.folder.exists()


def test_a_folder_is_swept_once_nobody_locks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not [pid for pid in _list_pids() if str(tmp_path) in _read_command(pid)]


def test_a_dead_host_is_told_as_such(lab: BuildLab) -> None:
    host: Host = lab(1)["host1"]
    host.destroy()
    with pytest.raises(OSError, match="host host1 is not up"):
        host.run(["true"])


def test_the_command_builds_a_lab_and_removes_it_at_the_end_of_its_input() -> None:
    require_lab()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.lab", "up", "1", "--decoy", "docker0"],
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
