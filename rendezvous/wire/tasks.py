"""Functions that the workers of a job run one after the other: how they are handed out, and what comes back.

Only bytes here: the program that has written a task and the worker that runs it know what they mean.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Protocol

from rendezvous.core.model import Worker

PIECE_BYTES = 1024 * 1024  # nothing larger is in memory on the way


@dataclass(frozen=True, slots=True)
class OutcomeHead:
    """What is known of an outcome before its bytes.

    number: of the task.
    size: how many bytes there are.
    failed: the bytes tell of an exception, and not of a result.
    follows_another: the task has failed because another worker had ended.
    """

    worker: Worker
    number: int
    size: int
    failed: bool = False
    follows_another: bool = False


class Task(Protocol):
    """One function, in bytes.

    number: from 1, growing.
    """

    @property
    def number(self) -> int:
        """See the class."""

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, none of the pieces larger than PIECE_BYTES; each call begins anew."""


class TaskDesk(Protocol):
    """Hands tasks out to the workers, and takes what has become of them."""

    async def next(self, after: int) -> Task | None:
        """Wait for a task with a number above `after`; None when there will be none."""

    async def take(self, head: OutcomeHead, pieces: AsyncIterator[bytes]) -> None:
        """Take an outcome; one that was taken before is ignored, one that breaks off was not taken."""
