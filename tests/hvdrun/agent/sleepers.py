"""Processes that tests of the agent start in order to have something that can be found and ended."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

LIMIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.005


@contextmanager
def sleeping(script: str = "", environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that leads a session; it runs `script` before it says that it lives, and sleeps."""
    command = ["sh", "-c", f"{script}\necho lives\nsleep 600\ntrue"]
    variables = {"PATH": os.environ["PATH"], **(environment or {})}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline() != b"lives\n":
                assert process.poll() is None
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """The process has not ended; one that has, and was not reaped, is dead."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:  # noqa: PTH123 - as short as it gets
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
    """Wait for what a process does by itself."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(_PAUSE_SECONDS)
