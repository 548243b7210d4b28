"""What members are told, and the board on which it hangs: the present state first, then every change.

The server keeps one board per host, the relay of an agent one for its host; a follower that comes late, or comes again
after a broken connection, misses nothing that still matters.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from rendezvous.core.model import Assignment, Endpoint, Worker


@dataclass(frozen=True, slots=True)
class Published:
    """A generation was formed; only the members on the receiving host are listed."""

    generation: int
    members: tuple[tuple[Worker, Assignment], ...]


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """Rank 0 of the generation serves torch's store there."""

    generation: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker's wish to join can never be met."""

    worker: Worker
    reason: str


@dataclass(frozen=True, slots=True)
class Departed:
    """A member of the generation has ended well, and takes part no more."""

    generation: int
    worker: Worker
    rank: int


Notice = Published | StoreOpened | Refused | Departed


class Board:
    """The notices that hold now, in the order of their posting; belongs to one event loop."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._followers: set[asyncio.Queue[Notice]] = set()

    def post(self, notice: Notice) -> None:
        """Hang up a notice in place of those it supersedes; one that hangs there already is not told again."""
        if notice in self._notices:
            return
        self._notices = [other for other in self._notices if not _supersedes(notice, other)]
        self._notices.append(notice)
        for follower in self._followers:
            follower.put_nowait(notice)

    async def follow(self) -> AsyncGenerator[Notice, None]:
        """Every notice that hangs there, then each new one, until the follower closes it."""
        news: asyncio.Queue[Notice] = asyncio.Queue()
        for notice in self._notices:
            news.put_nowait(notice)
        self._followers.add(news)
        try:
            while True:
                yield await news.get()
        finally:
            self._followers.discard(news)


def _supersedes(new: Notice, old: Notice) -> bool:
    """A new generation ends what was said of the former one; otherwise a notice replaces its own like."""
    match new, old:
        case Published(), _:
            return True
        case StoreOpened(), StoreOpened():
            return True
        case Refused(worker), Refused(other):
            return worker == other
        case _:
            return False
