"""The process in which `make gpu` runs its tests: it is ended where it hangs in a call that no signal interrupts."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.house.sources import ROOT

ONE_SECONDS = 150.0  # after which a test hangs
_END_SECONDS = 10.0  # for an interrupted process, whose tests end what they have started
_LOOK_SECONDS = 0.2


def watch(command: Sequence[str], report: Path, deadline_seconds: float) -> str:
    """Run a process until its end, until no other test begins, or until a deadline; what was wrong with its end.

    report: a file that it writes when a test begins.
    """
    process = subprocess.Popen(command, cwd=ROOT)
    written, changed = 0, time.monotonic()
    why = ""
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        now, stamp = time.monotonic(), report.stat().st_mtime_ns
        if stamp != written:
            written, changed = stamp, now
        if now > min(deadline_seconds, changed + ONE_SECONDS):
            why = f"it did not end within {now - changed:.0f} s, and was ended"
            end_process(process)
    if why or not process.returncode:
        return why
    return f"it ended the process of the tests with {name_end(process.returncode)}"


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Interrupt it, so that the tests end what they have started, and kill it if that does not help."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def name_end(code: int) -> str:
    """The signal or exit code by which a process has ended."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
