"""`hvdrun.run()` and `hvdrun.Cluster`: run a Python function on the workers of a job, and get what each returns."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from hvdrun.cluster.errors import JobEndedError, JobRefusedError
from hvdrun.cluster.job import Job
from hvdrun.cluster.keywords import complete, make_words, read_job
from hvdrun.cluster.messages import Delivered, Ended, Refused
from hvdrun.cluster.pickling import pack, read_error, read_result
from hvdrun.errors import UsageError

ResultT = TypeVar("ResultT")
Hosts = str | Sequence[str]


def run(  # noqa: PLR0917 - the order is Horovod's
    function: Callable[..., ResultT],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    hosts: Hosts | None = None,
    hostfile: str | Path | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,  # noqa: ANN401 - any option
) -> list[ResultT]:
    """Run a function on the workers of a new job, and return what it returns on each of them, by rank.

    Args:
        function: any function, also a lambda, a closure or one of `__main__`; it calls `hvd.init()` itself.
        args: its arguments.
        kwargs: its keyword arguments.
        num_proc: how many workers; all slots of the hosts, without hosts as many as this machine has GPUs, else 2.
        hosts: where they run: "server1:4,server2:4", or a list of these.
        hostfile: a file that names the hosts.
        min_num_proc: the job is elastic, and goes on with so few workers.
        max_num_proc: to how many workers it may grow.
        env: variables for the workers, beside those that the command line gives them.
        options: every other option of `hvdrun --help`, with _ for -, as in start_timeout=30.

    Raises:
        Exception: what the function has raised first; its traceback on the worker is the cause.
        JobEndedError: a worker has died.
        HvdrunError: the job is impossible, or cannot be launched.
        TypeError: there is no such option; or something cannot be sent, and is named.
        KeyboardInterrupt: Ctrl-C was pressed; the job has ended.
    """
    given = {
        "num_proc": num_proc,
        "hosts": hosts,
        "hostfile": hostfile,
        "min_num_proc": min_num_proc,
        "max_num_proc": max_num_proc,
        **options,
    }
    return run_once(Request(given, env), function, args, kwargs or {})


def run_once(
    request: "Request", function: Callable[..., ResultT], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[ResultT]:
    """Run a function on the workers of such a job; see `run`."""
    body = pack(function, args, kwargs, begins_anew=False, is_last=True)
    job = request.start()
    try:
        job.send(1, body)
        job.finish()
        delivered, end = _collect(job)
    finally:
        job.close()
    return _judge(delivered, end, request.size, is_elastic=request.is_elastic)


class Cluster:
    """Workers that run one function after the other, and stay warm between them.

    Its parameters are those of `run()`. Use it in a `with` block, whose end is the end of the workers. When a worker
    dies, that function's job ends with an error, and the next function gets new workers.
    """

    def __init__(
        self,
        num_proc: int | None = None,
        hosts: Hosts | None = None,
        hostfile: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,  # noqa: ANN401 - any option
    ) -> None:
        self._request = Request({"num_proc": num_proc, "hosts": hosts, "hostfile": hostfile, **options}, env)
        if self._request.is_elastic:
            raise UsageError(
                "the workers of a Cluster stay the same: run a function of an elastic job with hvdrun.run()."
            )
        self._lock = threading.Lock()
        self._job: Job | None = None
        self._number = 0
        self._begins_anew = False
        self._is_closed = False
        self._finalizer: Any = None

    @property
    def size(self) -> int:
        """How many workers it has."""
        return self._request.size

    def run(
        self, function: Callable[..., ResultT], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[ResultT]:
        """Run a function on all workers, and return what it returns on each of them, by rank; see `run()`."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this hvdrun.Cluster is closed: make another one.")
            body = pack(function, args, kwargs or {}, begins_anew=self._begins_anew, is_last=False)
            job = self._open()
            self._number += 1
            job.send(self._number, body)
            try:
                delivered, end = _collect(job, self.size, self._request.grace_seconds)
            except BaseException:
                self._end_job()
                raise
            self._begins_anew = any(outcome.failed for outcome in delivered)
            if end is not None or len(delivered) < self.size:
                self._end_job()
            return _judge(delivered, end, self.size, is_elastic=False)

    def close(self) -> None:
        """End the workers; does nothing when they have ended."""
        with self._lock:
            self._is_closed = True
            self._end_job(in_peace=True)

    def __enter__(self) -> Self:
        with self._lock:
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Job:
        """The job, which is started where there is none."""
        if self._job is None:
            self._job = self._request.start()
            self._number, self._begins_anew = 0, False
            self._finalizer = weakref.finalize(self, self._job.close)  # with the interpreter at the latest
        return self._job

    def _end_job(self, *, in_peace: bool = False) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        if in_peace:
            job.finish()
            for message in job.messages():
                if isinstance(message, Delivered):
                    message.body.close()
        job.close()
        self._finalizer.detach()


class Request:
    """What is asked of a job, found right.

    given: keywords, see `hvdrun.cluster.keywords`. env: variables for the workers. executable: their Python.

    Raises:
        HvdrunError: the job is impossible.
        TypeError: there is no such keyword.
    """

    def __init__(
        self, given: Mapping[str, object], env: Mapping[str, str] | None = None, executable: str | None = None
    ) -> None:
        self.environment = {**os.environ, **(env or {})}
        self.words = complete(make_words(given, env), executable)
        spec = read_job(self.words, self.environment)
        self.size = spec.size
        self.is_elastic = spec.is_elastic
        self.grace_seconds = spec.grace_seconds

    def start(self) -> Job:
        """Such a job."""
        return Job(self.words, self.environment)


def _collect(
    job: Job, size: int | None = None, grace_seconds: float = 0.0
) -> tuple[list[Delivered], Ended | Refused | None]:
    """What the workers deliver, in the order in which it comes, and how the job has ended, if it has.

    Args:
        job: that runs a function.
        size: so many outcomes are enough; None waits for the job's end.
        grace_seconds: when one has failed, how long the others are waited for.
    """
    delivered: list[Delivered] = []
    deadline: float | None = None
    while True:
        message = next(job.messages(deadline), None)
        if not isinstance(message, Delivered):
            return delivered, message
        delivered.append(message)
        if message.failed and size is not None and deadline is None:
            deadline = time.monotonic() + grace_seconds
        if len(delivered) == size:
            return delivered, None


def _judge(delivered: Sequence[Delivered], end: Ended | Refused | None, size: int, *, is_elastic: bool) -> list[Any]:
    """The results by rank.

    Raises:
        Exception: see `run`.
    """
    failed = [outcome for outcome in delivered if outcome.failed]
    is_well = end is None or (isinstance(end, Ended) and end.succeeded)
    if failed and not (is_well and is_elastic):
        first = next((outcome for outcome in failed if not outcome.follows_another), None)
        if first is not None or end is None:
            raise read_error(first or failed[0])
    if isinstance(end, Refused):
        raise JobRefusedError(end.lines)
    if isinstance(end, Ended) and not end.succeeded:
        raise JobEndedError(end.reason, end.rank, end.returncode, end.last_lines)
    results = {outcome.rank: outcome for outcome in delivered if not outcome.failed}
    if not is_elastic and len(results) < size:
        missing = ", ".join(str(rank) for rank in range(size) if rank not in results)
        raise JobEndedError(f"the job ended without the results of the ranks {missing}")
    return [read_result(results[rank]) for rank in sorted(results)]
