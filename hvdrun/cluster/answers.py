"""What comes back of a function from all workers, and what that means for whoever has called it."""

import time
from dataclasses import dataclass, field
from typing import Any

from hvdrun.cluster.errors import JobEndedError, JobRefusedError
from hvdrun.cluster.job import Job
from hvdrun.cluster.pickling import read_error, read_result
from hvdrun.tasks.messages import Delivered, Ended, Refused


@dataclass(slots=True)
class Answers:
    """What has become of one function.

    delivered: by the workers, in the order in which it came.
    end: how the job has ended; None while it goes on.
    """

    delivered: list[Delivered] = field(default_factory=list)
    end: Ended | Refused | None = None

    @property
    def has_failed(self) -> bool:
        """The function has failed on some worker."""
        return any(outcome.failed for outcome in self.delivered)

    def find_first_failure(self) -> Delivered | None:
        """The failure that came first; one that only follows from another's is none while that may be known yet."""
        failed = [outcome for outcome in self.delivered if outcome.failed]
        first = next((outcome for outcome in failed if not outcome.follows_another), None)
        return first or next(iter(failed if self.end is None else ()), None)

    def explain_end(self) -> JobRefusedError | JobEndedError | None:
        """Why the job ended, or never began; None where it goes on or has ended well."""
        match self.end:
            case Refused():
                return JobRefusedError(self.end.lines)
            case Ended(succeeded=False):
                return JobEndedError(self.end.reason, self.end.rank, self.end.returncode, self.end.last_lines)
            case _:
                return None

    def read(self, size: int, *, is_elastic: bool = False) -> list[Any]:
        """The results by rank; of an elastic job those that there are. They can be read once.

        Raises:
            Exception: what the function has raised first, or that the job has ended or never begun.
        """
        try:
            return self._read(size, is_elastic=is_elastic)
        finally:
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


def collect(job: Job, size: int | None = None, grace_seconds: float = 0.0) -> Answers:
    """Take what the workers deliver of the function that a job runs.

    Args:
        job: has been sent a function.
        size: so many outcomes are enough; None waits for the job's end.
        grace_seconds: when one has failed, how long the others are waited for.
    """
    answers = Answers()
    deadline: float | None = None
    while len(answers.delivered) != size:
        message = next(job.messages(deadline), None)
        if not isinstance(message, Delivered):
            answers.end = message
            break
        answers.delivered.append(message)
        if message.failed and size is not None and deadline is None:
            deadline = time.monotonic() + grace_seconds
    return answers
