"""`hvdrun.run()` and `hvdrun.Cluster`: run a Python function on the workers of a job, and return their results."""

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from hvdrun.cluster.errors import JobEndedError, JobRefusedError
from hvdrun.cluster.keywords import Request
from hvdrun.cluster.launcher_child import LauncherChild
from hvdrun.cluster.pickling import pack, read_error, read_result
from hvdrun.errors import UsageError
from hvdrun.tasks.messages import Delivered, Ended, Refused

ResultT = TypeVar("ResultT")


class Results(list[ResultT]):
    """What a function has returned, by rank: a list.

    outcome: how its job ended, and what its time was spent on: the object that `--outcome` writes, as a dict.
    """

    outcome: dict[str, Any] | None = None


Hosts = str | Sequence[str]


@dataclass(slots=True)
class Answers:
    """The outcomes of one function.

    delivered: the workers' outcomes, in the order in which they came.
    end: how the job ended; None while it runs.
    """

    delivered: list[Delivered] = field(default_factory=list)
    end: Ended | Refused | None = None

    @property
    def has_failed(self) -> bool:
        """The function has failed on some worker."""
        return any(outcome.failed for outcome in self.delivered)

    def find_first_failure(self) -> Delivered | None:
        """The first failure with a cause; one that follows another worker's end counts only after the job's end."""
        failed = [outcome for outcome in self.delivered if outcome.failed]
        first = next((outcome for outcome in failed if not outcome.follows_another), None)
        if first is None and failed and self.end is None:
            return failed[0]
        return first

    def explain_end(self) -> JobRefusedError | JobEndedError | None:
        """Why the job failed, or never began; None if it runs or has succeeded."""
        match self.end:
            case Refused():
                return JobRefusedError(self.end.lines)
            case Ended(succeeded=False):
                return JobEndedError(self.end.reason, self.end.rank, self.end.returncode, self.end.last_lines)
            case _:
                return None

    def read(self, size: int, *, is_elastic: bool = False) -> list[Any]:
        """The results by rank; of an elastic job those that came. They can be read once.

        Raises:
            Exception: the first exception of the function; or the job failed or never began.
        """
        try:
            return self._read(size, is_elastic=is_elastic)
        finally:
            self.close()

    def close(self) -> None:
        """Close the outcomes, which can no longer be read."""
        for outcome in self.delivered:
            outcome.body.close()

    def _read(self, size: int, *, is_elastic: bool) -> list[Any]:
        has_succeeded = isinstance(self.end, Ended) and self.end.succeeded
        first = self.find_first_failure()
        if first is not None and not (is_elastic and has_succeeded):
            raise read_error(first)
        ended = self.explain_end()
        if ended is not None:
            raise ended
        results = {outcome.rank: outcome for outcome in self.delivered if not outcome.failed}
        if not is_elastic and len(results) < size:
            missing = ", ".join(str(rank) for rank in range(size) if rank not in results)
            raise JobEndedError(f"the job ended without the results of the ranks {missing}")
        return [read_result(results[rank]) for rank in sorted(results)]


def collect(job: LauncherChild, size: int | None = None, grace_seconds: float = 0.0) -> Answers:
    """Receive the outcomes of the function that a job runs.

    Args:
        job: a job that has been sent a function.
        size: how many outcomes to wait for; None waits for the job's end.
        grace_seconds: how long to wait for the others after one has failed.
    """
    answers = Answers()
    deadline: float | None = None
    try:
        while len(answers.delivered) != size:
            message = next(job.messages(deadline), None)
            if not isinstance(message, Delivered):
                answers.end = message
                break
            answers.delivered.append(message)
            if message.failed and size is not None and deadline is None:
                deadline = time.monotonic() + grace_seconds
    except BaseException:
        answers.close()
        raise
    return answers


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
    **options: Any,
) -> Results[ResultT]:
    """Run a function on the workers of a new job, and return what it returns on each of them, by rank.

    An elastic job returns only the results of the workers that have finished; their places in the list are not ranks.
    The list has the attribute `outcome`: how the job ended, and what its time was spent on, as `--outcome` writes it.

    Args:
        fn: any function, also a lambda, a closure or one of `__main__`; it calls `hvd.init()` itself.
        args: its arguments.
        kwargs: its keyword arguments.
        num_proc: how many workers. Without it: the slots of the hosts; without hosts those of the allocation (Slurm,
            PBS, LSF) that this program runs in; else as many as this machine has GPUs; else 2.
        hosts: where they run: "server1:4,server2:4", or a list of these.
        hostfile: a file that names the hosts.
        min_num_proc: the job is elastic, and continues with as few workers as this.
        max_num_proc: how many workers it may grow to.
        env: more variables for the workers.
        options: every other option of `hvdrun --help`, with _ for -, for example start_timeout=30.

    Raises:
        Exception: the first exception of the function; its cause shows the traceback on the worker.
        JobEndedError: a worker died.
        HvdrunError: the job is impossible, or cannot be launched.
        TypeError: there is no such option, or an object cannot be sent; the message names it.
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
) -> Results[ResultT]:
    """Run a function on the workers of a new job; see `run`."""
    body = pack(function, args, kwargs, is_last=True, modules=request.collect_modules())
    job = request.start()
    try:
        job.send(1, body)
        job.finish()
        answers = collect(job)
    finally:
        job.close()
    try:
        results = Results(answers.read(request.size, is_elastic=request.is_elastic))
    except (JobEndedError, JobRefusedError) as error:
        error.outcome = job.outcome
        raise
    results.outcome = job.outcome
    return results


_TRIES = 2  # of a function that no worker has begun


class Cluster:
    """Workers that run one function after the other, and stay warm between them.

    Its parameters are those of `run()` without `min_num_proc` and `max_num_proc`: it cannot be elastic. Use it in a
    `with` block; the workers end with the block. When a worker dies, the function that runs raises an error, and the
    next function gets new workers, which write into files of their own: `DIR/job.2` of `output_filename="DIR"`, and
    `t.job.2.json` of `timeline="t.json"`.

    Args:
        num_proc, hosts, hostfile, env, options: see `run()`.
    """

    def __init__(
        self,
        num_proc: int | None = None,
        hosts: Hosts | None = None,
        hostfile: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._request = Request({"num_proc": num_proc, "hosts": hosts, "hostfile": hostfile, **options}, env)
        if self._request.is_elastic:
            raise UsageError("a Cluster cannot be elastic: run a function of an elastic job with hvdrun.run().")
        self._lock = threading.Lock()
        self._job: LauncherChild | None = None
        self._jobs = 0  # how many it has begun
        self._number = 0
        self._begins_anew = False
        self._is_closed = False
        self._outcome: dict[str, Any] | None = None
        self._finalizer: Any = None

    @property
    def size(self) -> int:
        """How many workers it has."""
        return self._request.size

    @property
    def outcome(self) -> dict[str, Any] | None:
        """How its last job ended, and what its time was spent on, as `--outcome` writes it; None while none has ended.

        A job ends with the block, and when a worker dies.
        """
        return self._outcome

    def run(
        self, fn: Callable[..., ResultT], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> list[ResultT]:
        """Run a function on all workers, and return what it returns on each of them, by rank; see `run()`."""
        answers = self.call(fn, args, kwargs or {})
        try:
            return answers.read(self.size)
        except (JobEndedError, JobRefusedError) as error:
            error.outcome = self._outcome
            raise

    def call(
        self,
        function: Callable[..., object],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grace_seconds: float | None = None,
        *,
        leaves_group: bool = False,
    ) -> Answers:
        """Run a function on all workers; return the outcomes, in the order in which they came.

        grace_seconds: how long the other workers may take after one has failed; then the job ends.
        leaves_group: a worker leaves `hvd`'s group after the function, so that the others do not wait for it.
        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this hvdrun.Cluster is closed: create another one.")
            if grace_seconds is None:
                grace_seconds = self._request.grace_seconds

            for _ in range(_TRIES):
                job = self._open()
                body = pack(
                    function,
                    args,
                    kwargs,
                    begins_anew=self._begins_anew,
                    leaves_group=leaves_group,
                    modules=self._request.collect_modules(),
                )
                try:
                    self._number += 1
                    job.send(self._number, body)
                    answers = collect(job, self.size, grace_seconds)
                except BaseException:
                    self._end_job()
                    raise
                if not isinstance(answers.end, Ended) or answers.end.begun >= self._number:
                    break
                self._end_job()  # a worker had died before the function: new workers run it

            self._begins_anew = answers.has_failed
            if answers.end is not None or len(answers.delivered) < self.size:
                self._end_job()
            return answers

    def close(self) -> None:
        """End the workers, if they have not ended."""
        with self._lock:
            self._is_closed = True
            self._end_job(is_orderly=True)

    def __enter__(self) -> Self:
        with self._lock:
            self._open()
        return self

    def __repr__(self) -> str:
        """The number of workers, and whether they run: `<Cluster of 2 workers, not started>`."""
        job = self._job  # without the lock, which a function that runs holds
        if self._is_closed:
            state = "closed"
        elif job is None or job.is_over:
            state = "not started"
        else:
            state = "started"
        return f"<Cluster of {self.size} worker{'' if self.size == 1 else 's'}, {state}>"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> LauncherChild:
        """The job; a new one if there is none, it has ended, or it is that of the process that forked this one."""
        # A worker may have died since the last function.
        if self._job is not None and (not self._job.is_own or self._job.has_ended()):
            self._end_job()
        if self._job is None:
            self._jobs += 1
            self._job = self._request.start(self._jobs)
            self._number, self._begins_anew = 0, False
            self._finalizer = weakref.finalize(self, self._job.close)  # at the exit of the interpreter at the latest
        return self._job

    def _end_job(self, *, is_orderly: bool = False) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        if is_orderly and job.is_own:
            job.finish()
            # a thread that a function left running in a worker does not delay this longer
            for message in job.messages(time.monotonic() + self._request.grace_seconds):
                if isinstance(message, Delivered):
                    message.body.close()
        job.close()
        self._outcome = job.outcome
        self._finalizer.detach()
