"""`hvdrun.run()` and `hvdrun.Cluster`: run a Python function on the workers of a job, and get what each returns."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from hvdrun.cluster.answers import Answers, collect
from hvdrun.cluster.job import Job
from hvdrun.cluster.keywords import complete, make_words, read_job
from hvdrun.cluster.modules import Unit, collect_modules
from hvdrun.cluster.pickling import pack
from hvdrun.errors import UsageError
from hvdrun.spec.discovery import LOCALHOST
from hvdrun.tasks.messages import Delivered

ResultT = TypeVar("ResultT")
Hosts = str | Sequence[str]


def run(  # noqa: PLR0917 - the order is Horovod's
    fn: Callable[..., ResultT],
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
        fn: any function, also a lambda, a closure or one of `__main__`; it calls `hvd.init()` itself.
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
    return run_once(Request(given, env), fn, args, kwargs or {})


def run_once(
    request: "Request", function: Callable[..., ResultT], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[ResultT]:
    """Run a function on the workers of such a job; see `run`."""
    body = pack(function, args, kwargs, is_last=True, modules=request.collect_modules())
    job = request.start()
    try:
        job.send(1, body)
        job.finish()
        answers = collect(job)
    finally:
        job.close()
    return answers.read(request.size, is_elastic=request.is_elastic)


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
        self, fn: Callable[..., ResultT], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[ResultT]:
        """Run a function on all workers, and return what it returns on each of them, by rank; see `run()`."""
        return self.call(fn, args, kwargs or {}).read(self.size)

    def call(
        self,
        function: Callable[..., object],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grace_seconds: float | None = None,
        *,
        leaves_group: bool = False,
    ) -> Answers:
        """Run a function on all workers; what has become of it on each of them, in the order in which that came.

        grace_seconds: when it has failed on one, how long the others may take; the job ends after that.
        leaves_group: a worker leaves `hvd`'s group when it has run the function, so that the others do not wait for it.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this hvdrun.Cluster is closed: make another one.")
            job = self._open()
            body = pack(
                function,
                args,
                kwargs,
                begins_anew=self._begins_anew,
                leaves_group=leaves_group,
                modules=self._request.collect_modules(),
            )
            grace = self._request.grace_seconds if grace_seconds is None else grace_seconds
            try:
                self._number += 1
                job.send(self._number, body)
                answers = collect(job, self.size, grace)
            except BaseException:
                self._end_job()
                raise
            self._begins_anew = answers.has_failed
            if answers.end is not None or len(answers.delivered) < self.size:
                self._end_job()
            return answers

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
        """The job, which is started where there is none, or none any more."""
        if self._job is not None and self._job.has_ended():  # a worker has died since the last function
            self._end_job()
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
            # what a function has left running in a worker, a thread perhaps, does not keep it
            for message in job.messages(time.monotonic() + self._request.grace_seconds):
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
        self.words = complete(make_words(given, env), executable)
        self.environment = {**os.environ, **(env or {})}
        spec = read_job(self.words, self.environment)
        self.size = spec.workers.size
        self.is_elastic = spec.is_elastic
        self.grace_seconds = spec.limits.grace_seconds
        self._has_other_hosts = spec.discovers or any(host.name != LOCALHOST for host in spec.workers.hosts)

    def collect_modules(self) -> tuple[Unit, ...]:
        """The program's own modules, where its workers run on hosts that may not have them."""
        return collect_modules() if self._has_other_hosts else ()

    def start(self) -> Job:
        """Such a job."""
        return Job(self.words, self.environment)
