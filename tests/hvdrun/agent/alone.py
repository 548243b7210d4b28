"""Runs a test in a process of its own: a Watch reaps, and in the end kills, every child of the process it is in.

The process is forked from one that has made the imports of the tests before, and has no threads.
"""

import asyncio
import atexit
import ctypes
import faulthandler
import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Coroutine
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ParamSpec

ROOT = Path(__file__).parents[3]
LIMIT_SECONDS = 60
PR_SET_CHILD_SUBREAPER = 36

P = ParamSpec("P")


def alone(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run an asynchronous test in an event loop and a process of its own; its arguments must be picklable."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        status, printed = start_forge().play(test.__module__, test.__name__, args, kwargs)
        assert (status, printed) == (0, ""), printed

    return run


class Forge:
    """The process that the processes of tests are forked from."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.hvdrun.agent.alone", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        atexit.register(self.close)

    def play(self, module: str, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[int, str]:
        """Run this test: how its process ended, and all that it printed."""
        self._connection.send((module, name, args, kwargs))
        try:
            return self._connection.recv()  # type: ignore[no-any-return]  # it is what `serve` sends
        except BaseException:
            start_forge.cache_clear()
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


@functools.cache
def start_forge() -> Forge:
    return Forge()


def serve(connection: Connection) -> None:
    """Fork for each test, until the other end is closed."""
    while True:
        try:
            module, name, args, kwargs = connection.recv()
        except EOFError:
            return
        test = getattr(importlib.import_module(module), name).__wrapped__
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                connection.close()
                play(functools.partial(test, *args, **kwargs), output.fileno())
            _, status = os.waitpid(pid, 0)
            output.seek(0)
            connection.send((os.waitstatus_to_exitcode(status), output.read().decode(errors="replace")))


def play(test: Callable[[], Coroutine[object, object, None]], output: int) -> None:
    """Run the test and end this process."""
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # it reaps orphans too, as an agent does
        faulthandler.register(signal.SIGALRM, chain=True)  # says where the test hangs, and ends it
        signal.alarm(LIMIT_SECONDS)
        asyncio.run(test())
        gc.collect()  # what was left open says so
        status = 0
    except BaseException:  # noqa: BLE001 - the test is to see it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
