"""Who is who among the processes of a job, for tests that end one of them."""

import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Callable
from pathlib import Path

from tests.system.launcher import Launcher

LIMIT_SECONDS = 60.0  # ends what hangs
_PAUSE_SECONDS = 0.01


def find_agent(hvdrun: Launcher) -> int | None:
    """The pid of the job's only agent; None when there is none."""
    return _find_only(hvdrun, lambda command: command.endswith(" -m hvdrun.agent"))


def find_watchdog(hvdrun: Launcher) -> int | None:
    """The pid of its watchdog."""
    return _find_only(hvdrun, lambda command: " -m hvdrun.processes.watchdog_process " in command)


def has_looked(watchdog: int | None) -> bool:
    """The watchdog has read all messages of its agent, done what they say, and waits for more."""
    try:
        with Path(f"/proc/{watchdog}/fd/0").open("rb", buffering=0) as pipe:
            unread = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
    except OSError:
        return False
    return unread == 0 and watchdog is not None and read_state(watchdog) == "S"


def count_read(pid: int) -> int:
    """How many bytes a process has read from files, those of /proc included."""
    return int(Path(f"/proc/{pid}/io").read_text(encoding="ascii").split()[1])


def read_state(pid: int) -> str:
    """The letter that /proc shows: R, S, T, Z and so on; X when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def find_sequencers(hvdrun: Launcher) -> list[int]:
    """The pids of all its sequencers; there should be one at most."""
    return [process.pid for process in hvdrun.processes(" -m worker_runtime.coordination.sequencer ")]


def kill(pid: int | None, number: signal.Signals = signal.SIGKILL) -> int:
    """`kill -9` a process that must exist, and wait for its end; or send it another signal. Its pid.

    A process that is still there after `kill -9` would be taken for the one that takes its place.
    """
    assert pid is not None
    if number != signal.SIGKILL:
        os.kill(pid, number)
        return pid
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, number)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        assert poller.poll(1000 * LIMIT_SECONDS), f"process {pid} has not ended after kill -9"
    finally:
        os.close(descriptor)
    return pid


def _find_only(hvdrun: Launcher, is_wanted: Callable[[str], bool]) -> int | None:
    """The only one; a child that it has forked has its command line until it executes another program."""
    found = {process.pid: process.parent for process in hvdrun.processes("-m hvdrun.") if is_wanted(process.command)}
    first = [pid for pid, parent in found.items() if parent not in found]
    assert len(first) <= 1, first
    return first[0] if first else None
