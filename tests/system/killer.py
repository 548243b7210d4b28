"""Kills workers of a recovery test from outside, in the very part of a step that is asked for."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tests.system.launcher import Running
from tests.system.recording import read_notes
from tests.system.recovery_scripts.stage import read_place
from tests.waiting import wait_until

# By what a worker does: the places in its script that it notes meanwhile.
PHASES = {
    "compute": frozenset({"compute", "backward", "end", "stepped"}),
    "reduction": frozenset({"reduction"}),
    "commit round": frozenset({"commit", "asked"}),
    "between synchronize() and step()": frozenset({"committed", "synchronized", "between", "clipped"}),
    "forming": frozenset({"forming"}),
}
AIM_SECONDS = 5.0  # until one comes to a place of the phase; each passes most in every step
_STOP_SECONDS = 1.0


class Killer:
    """Knows the workers that train, and those that it has killed.

    Args:
        folder: where they write their notes.
        running: the job of the workers.

    killed: the phase of each, in order.
    """

    def __init__(self, folder: Path, running: Running) -> None:
        self._folder = folder
        self._running = running
        self._dead: set[int] = set()
        self.killed: list[str] = []

    def await_training(self, size: int, step: int) -> None:
        """Wait until so many workers have made this step; a job that has ended says why."""

        def do_train() -> bool:
            assert self._running.is_running, "it has ended"
            notes = read_notes(self._folder)
            return len({note["pid"] for note in notes if note["what"] == "step" and note["step"] >= step}) >= size

        try:
            wait_until(do_train, f"step {step} of {size} workers")
        except AssertionError as error:
            killed = f"{len(self.killed)} were killed ({', '.join(self.killed)})"
            raise AssertionError(f"{self._running.stderr.text()}\n{error}; {killed}") from None

    def find_victims(self) -> list[int]:
        """The pids of the live workers that train, in the order in which they began."""
        noted = [note["pid"] for note in read_notes(self._folder) if note["what"] == "enter"]
        return [pid for pid in dict.fromkeys(noted) if pid not in self._dead and _is_alive(pid)]

    def kill(self, phase: str, victims: Iterable[int]) -> bool:
        """End the first of these that comes to the phase, with SIGKILL; False where none does in time."""
        pids, wanted = [pid for pid in victims if pid not in self._dead], PHASES[phase]
        deadline = time.monotonic() + AIM_SECONDS
        while time.monotonic() < deadline:
            for pid in pids:
                if read_place(self._folder, pid) in wanted and self._kill_there(pid, wanted):
                    self.killed.append(phase)
                    return True
        return False

    def _kill_there(self, pid: int, wanted: frozenset[str]) -> bool:
        """Stop it, so that it goes no further, look again, and end it."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(pid, signal.SIGSTOP)
            deadline = time.monotonic() + _STOP_SECONDS
            while _read_state(pid) != "T" and time.monotonic() < deadline:
                pass
            if read_place(self._folder, pid) not in wanted:
                os.kill(pid, signal.SIGCONT)
                return False
            os.kill(pid, signal.SIGKILL)
            self._dead.add(pid)
            return True
        return False


def _is_alive(pid: int) -> bool:
    try:
        return _read_state(pid) not in "ZX"
    except FileNotFoundError:
        return False


def _read_state(pid: int) -> str:
    """The letter that /proc shows: R, S, T, Z and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
