"""The life of a worker that runs functions: fetch one, run it, tell what has become of it, until there are no more."""

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]  # it ships no types

from worker_runtime.membership import Bootstrap, import_task_client
from worker_runtime.tasks.outcome import Outcome, describe

_MEMORY_BYTES = 16 * 1024 * 1024  # what is larger lies in a file
_FAILURE = 1


class Orders(NamedTuple):
    """What stands before each function; the program writes it as a plain tuple.

    paths: where the program finds its modules.
    begins_anew: the function before has failed on some rank: what is left of that is ended.
    is_last: nothing can follow; a worker whose function fails then fails itself.
    """

    paths: tuple[str, ...]
    begins_anew: bool
    is_last: bool


def run_all() -> int:
    """Run the functions of this job; the exit code."""
    bootstrap = Bootstrap.read(os.environ)
    if bootstrap is None:
        sys.stderr.write("worker_runtime.tasks runs the functions of hvdrun.run(), and nothing else.\n")
        return 2
    client = import_task_client()
    number = 0
    while True:
        with SpooledTemporaryFile(_MEMORY_BYTES, prefix="hvdrun-") as task, _dying_of_interrupts():
            with closing(client(bootstrap)) as tasks:
                found = tasks.fetch(number, task)
            if found is None:
                return 0
            number = found
            task.seek(0)
            orders = Orders(*pickle.load(task))  # noqa: S301 - from the program that has started this worker
            outcome = run(task, orders)
        with SpooledTemporaryFile(_MEMORY_BYTES, prefix="hvdrun-") as answer:
            failed = outcome.write(answer)
            with _dying_of_interrupts(), closing(client(bootstrap)) as tasks:
                tasks.deliver(number, answer, failed=failed, follows_another=outcome.follows_another)
        if failed:
            if orders.is_last:
                return _FAILURE
            leave_job()


def run(file: IO[bytes], orders: Orders) -> Outcome:
    """Run the function that stands in the file; what has become of it."""
    if orders.begins_anew:
        leave_job()
    sys.path[:0] = [path for path in orders.paths if path not in sys.path]
    with _raising_interrupts():
        try:
            function, arguments, keywords = cloudpickle.load(file)
            return Outcome(result=function(*arguments, **keywords))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - told to the program
            return describe(error, follows_another=follows_another())
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()


def leave_job() -> None:
    """Leave the group of the workers, where this one is in it, so that nobody waits for it."""
    if (runtime := find_runtime()) is not None:
        runtime.shutdown()


def follows_another() -> bool:
    """Another worker's end was told to this one."""
    runtime = find_runtime()
    return runtime is not None and runtime.is_initialized and runtime.executor.has_failed


def find_runtime() -> Any:  # noqa: ANN401 - its type would be imported
    """The runtime of this process, where the function has brought it."""
    module = sys.modules.get("worker_runtime.runtime")
    return None if module is None else module.RUNTIME


@contextmanager
def _dying_of_interrupts() -> Iterator[None]:
    """Within it, Ctrl-C ends this process without a word: nothing of the user's runs."""
    former = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def _raising_interrupts() -> Iterator[None]:
    """Within it, Ctrl-C raises KeyboardInterrupt, as functions expect it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
