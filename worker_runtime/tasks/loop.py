"""The loop of a worker that runs functions: fetch a function, run it, return its result, until there are no more.

The connection to the agent is closed while a function runs: gRPC is unreliable in the child of a process that forks
with an open connection, as a DataLoader with workers does.

A function comes with its modules, for hosts that lack them or have others. Its exception is sent to the program.
"""

import importlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple, Self

import cloudpickle  # type: ignore[import-untyped]  # it ships no types

from worker_runtime.rendezvous import Bootstrap, find_unsendable, import_task_client, read_is_elastic, reduce_tensor

_MEMORY_BYTES = 16 * 1024 * 1024  # larger functions and results are in files
_FAILURE = 1
_WRONG_USE = 2


def add_modules(units: Sequence[tuple[str, Mapping[str, bytes]]], place: Path) -> list[str]:
    """Write missing modules to a folder of this worker; return the folders to put first on the search path.

    Args:
        units: for each module or package its folder, and its sources by their path in that folder.
        place: a folder that is removed with the job.
    """
    added: list[str] = []
    for folder, sources in units:
        if all(_holds(Path(folder, name), source) for name, source in sources.items()):
            continue
        copy = place / folder.lstrip("/")
        for name, source in sources.items():
            if not _holds(copy / name, source):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                (copy / name).write_bytes(source)
        added.append(str(copy))
    if added:
        importlib.invalidate_caches()
    return list(dict.fromkeys(added))


def _holds(file: Path, source: bytes) -> bool:
    try:
        return file.read_bytes() == source
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text.

    kind: the name of its class, as Python prints it; "" for a result that cannot be sent.
    text: its message.
    traceback: its traceback, as Python prints it.
    pickled: the pickled exception; None if it cannot be pickled.
    """

    kind: str
    text: str
    traceback: str = ""
    pickled: bytes | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The failure of an exception that was caught in the caller of the function."""
        own = error.__traceback__  # the frame that has called the function
        lines = traceback.format_exception(type(error), error, own and own.tb_next)
        return cls(name(error), _describe(error), "".join(lines), _pickle(error))

    def show(self) -> None:
        """Print it in an elastic job, which may succeed without this worker: then the program does not see it."""
        if read_is_elastic(os.environ) and self.kind != SystemExit.__name__ and sys.stderr is not None:
            sys.stderr.write(self.traceback or f"{self.text}\n")

    def write(self, file: IO[bytes]) -> None:
        """Write it as a plain tuple, which needs no class to be read."""
        cloudpickle.dump((self.kind, self.text, self.traceback, self.pickled), file)


def explain_unsendable(result: object, error: Exception) -> Failure:
    """The failure that replaces a result that cannot be pickled."""
    return Failure("", find_unsendable("what the function returned", result, is_sendable) or str(error))


def is_sendable(value: object) -> bool:
    """Whether a value can be pickled."""
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - its own code may raise any error
        return False
    return True


def name(error: BaseException) -> str:
    """The name of an exception's class, as Python prints it."""
    kind = type(error)
    if kind.__module__ in {"builtins", "__main__"}:
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _describe(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - its own code may raise any error
        return "(its message cannot be printed)"


def _pickle(error: BaseException) -> bytes | None:
    if not isinstance(error, Exception):
        return None  # SystemExit and the like would end the program that receives them
    try:
        with BytesIO() as file:
            _Pickler(file).dump(error)
            pickled = file.getvalue()
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 - its own code may raise any error
        return None
    return pickled


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no types
    """Pickles dtypes whose pickles torch cannot load."""

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        if (made := reduce_tensor(obj)) is not NotImplemented:
            return made
        return super().reducer_override(obj)


class TaskHead(NamedTuple):
    """The head of each function; the program writes it as a plain tuple.

    paths: the program's search path.
    begins_anew: the function before has failed on some rank: leave its group first.
    is_last: no function can follow, so that a worker whose function fails exits with the code of a program that fails.
    leaves_group: the worker leaves the group after the function.
    modules: the program's modules, for hosts that lack them; see `add_modules`.
    """

    paths: tuple[str, ...]
    begins_anew: bool
    is_last: bool
    leaves_group: bool = False
    modules: tuple[tuple[str, Mapping[str, bytes]], ...] = ()


class Answer(NamedTuple):
    """The result or failure of a function as a file.

    follows_another: it failed because another worker had ended.
    is_last, leaves_group: see `TaskHead`.
    exit_code: of the worker if the function has failed and is the last.
    """

    file: IO[bytes]
    failed: bool = False
    follows_another: bool = False
    is_last: bool = False
    leaves_group: bool = False
    exit_code: int = _FAILURE


def run_all() -> int:
    """Run the functions of this job; return the exit code."""
    bootstrap = Bootstrap.read(os.environ)
    if bootstrap is None:
        sys.stderr.write("worker_runtime.tasks runs only in the workers of hvdrun.run().\n")
        return _WRONG_USE

    connect = import_task_client()
    number, answer = 0, None
    while True:
        with make_file() as task:
            with _interrupts(signal.SIG_DFL), closing(connect(bootstrap)) as tasks:  # no code of the user runs
                if answer is not None:
                    with answer.file as file:
                        tasks.deliver(number, file, failed=answer.failed, follows_another=answer.follows_another)
                    if answer.failed and answer.is_last:
                        return answer.exit_code
                    if answer.failed or answer.leaves_group:
                        leave_job()  # not before: the others fail then, and the program shows the first failure
                found = tasks.fetch(number, task)

            if found is None:
                return 0
            number = found
            task.seek(0)
            answer = run(task, bootstrap.socket.with_name(f"modules-{os.getpid()}"))


def run(file: IO[bytes], place: Path) -> Answer:
    """Run the function in a file, and write its result or failure.

    Args:
        file: the head and the pickled function.
        place: a folder for the program's modules, which is removed with the job.
    """
    orders = TaskHead(*pickle.load(file))  # noqa: S301 - from the program that has started the job
    if orders.begins_anew:
        leave_job()
    answer = make_file()

    with _interrupts(signal.default_int_handler):
        try:
            added = add_modules(orders.modules, place)
            sys.path[:0] = [path for path in (*added, *orders.paths) if path not in sys.path]
            function, arguments, keywords = cloudpickle.load(file)
            result = function(*arguments, **keywords)
        except KeyboardInterrupt:
            answer.close()
            raise
        except BaseException as error:  # noqa: BLE001 - reported to the program
            failure = Failure.of(error)
            failure.write(answer)
            failure.show()
            return Answer(
                answer,
                failed=True,
                follows_another=follows_another(),
                is_last=orders.is_last,
                exit_code=find_exit_code(error),
            )
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()

        try:
            _Pickler(answer).dump(result)
        except Exception as error:  # noqa: BLE001 - the result's own code may raise any error
            answer.seek(0)
            answer.truncate()
            failure = explain_unsendable(result, error)
            failure.write(answer)
            failure.show()
            return Answer(answer, failed=True, is_last=orders.is_last)
    return Answer(answer, leaves_group=orders.leaves_group)


def make_file() -> IO[bytes]:
    """An empty file, which is in memory while it is small."""
    return SpooledTemporaryFile(_MEMORY_BYTES, prefix="hvdrun-")


def find_exit_code(error: BaseException) -> int:
    """The exit code of a program that ends with this exception; of one that would end with 0, that of a failure."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code or _FAILURE
    return _FAILURE


def leave_job() -> None:
    """Leave the group of the workers, if this one is in it, so that none waits for it."""
    if (runtime := find_runtime()) is not None:
        runtime.shutdown()


def follows_another() -> bool:
    """Whether this worker knows of another worker's failure."""
    runtime = find_runtime()
    return runtime is not None and runtime.is_initialized and runtime.engine.has_failed


def find_runtime() -> Any:
    """The runtime of this process, if the function has imported it."""
    module = sys.modules.get("worker_runtime.membership.runtime")
    if module is None:
        return None
    return module.RUNTIME


@contextmanager
def _interrupts(handler: Any) -> Iterator[None]:
    """A context with this handler of Ctrl-C."""
    former = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
