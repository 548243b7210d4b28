"""What members are told, and the board on which it hangs: the present state first, then every change.

The server keeps one board per host, the relay of an agent one for its host; a follower that comes late, or comes again
after a broken connection, misses nothing that still matters.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

from rendezvous.core.messages import Announce, Depart, Effect, Interrupt, OfferResize, Publish, Refuse
from rendezvous.core.model import Assignment, Worker
from rendezvous.core.reports import Decision, Verdict

KEY_BYTES = 32  # of a generation's key


@dataclass(frozen=True, slots=True)
class Published:
    """A generation was formed; only the members on the receiving host are listed.

    key: KEY_BYTES random bytes that only the generation's members and their agents know.
    """

    generation: int
    members: tuple[tuple[Worker, Assignment], ...]
    key: bytes = field(repr=False)
    verdict: Verdict = Verdict(Decision.BEGIN)  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class SequencerFailed:
    """The generation will have no sequencer; told in place of `Announce`, to the workers of rank 0's host.

    reason: one sentence, without a full stop.
    """

    generation: int
    reason: str


Notice = Published | Interrupt | OfferResize | Announce | SequencerFailed | Refuse | Depart


class Bulletin:
    """The notices that hold now, in the order of their posting."""

    def __init__(self) -> None:
        self._notices: dict[object, Notice] = {}

    def __iter__(self) -> Iterator[Notice]:
        return iter(self._notices.values())

    def post(self, notice: Notice) -> bool:
        """Hang up a notice in place of those it supersedes; False when it hangs there already."""
        place = _place(notice)
        if self._notices.get(place) == notice:
            return False
        if isinstance(notice, Published):  # a new generation ends what was said of the former one
            self._notices.clear()
        self._notices.pop(place, None)  # or the new one would hang where the old one did, before others
        self._notices[place] = notice
        return True


class Board:
    """A bulletin with those who follow it; belongs to one event loop."""

    def __init__(self) -> None:
        self._bulletin = Bulletin()
        self._followers: set[asyncio.Queue[Notice | None]] = set()
        self._is_closed = False

    def post(self, notice: Notice) -> None:
        """Hang up a notice; one that hangs there already is not told again."""
        if self._bulletin.post(notice):
            for follower in self._followers:
                follower.put_nowait(notice)

    async def follow(self) -> AsyncGenerator[Notice, None]:
        """Every notice that hangs there, then each new one, until the follower or the board is closed."""
        news: asyncio.Queue[Notice | None] = asyncio.Queue()
        for notice in self._bulletin:
            news.put_nowait(notice)
        if self._is_closed:
            news.put_nowait(None)
        self._followers.add(news)
        try:
            while (notice_or_end := await news.get()) is not None:
                yield notice_or_end
        finally:
            self._followers.discard(news)

    def close(self) -> None:
        """Nothing more is told; every follower comes to an end."""
        self._is_closed = True
        for follower in self._followers:
            follower.put_nowait(None)


def _place(notice: Notice) -> object:
    """Where a notice hangs: there is one of a kind, of those about workers one for each."""
    match notice:
        case Refuse(worker) | Depart(_, worker):
            return type(notice), worker
        case _:
            return type(notice)


class Boards:
    """One board per host; each tells of its own members only."""

    def __init__(self) -> None:
        self._boards: dict[str, Board] = {}
        self._key = (0, b"")  # the last generation's number, and its key

    def of(self, host: str) -> Board:
        """The board of one host."""
        return self._boards.setdefault(host, Board())

    def post(self, effect: Effect) -> bool:
        """Tell those whom this effect concerns; False when it is none about membership."""
        match effect:
            case Publish():
                self._publish(effect)
            case Interrupt() | OfferResize() | Announce() | Depart():
                for board in self._boards.values():
                    board.post(effect)
            case Refuse(worker):
                self.of(worker.slot.host).post(effect)
            case _:
                return False
        return True

    def forget(self, host: str) -> None:
        """Whoever follows this host's board is told no more; its next agent finds a new one."""
        if (board := self._boards.pop(host, None)) is not None:
            board.close()

    def _publish(self, publish: Publish) -> None:
        number = publish.generation.number
        key = self._make_key(number)
        members: dict[str, list[tuple[Worker, Assignment]]] = {}
        for worker, assignment in zip(publish.generation.members, publish.assignments, strict=True):
            members.setdefault(worker.slot.host, []).append((worker, assignment))
        for host, ranked in members.items():
            self.of(host).post(Published(number, tuple(ranked), key, publish.verdict))

    def _make_key(self, generation: int) -> bytes:
        """The key of a generation: one for all its members, and told again when that is."""
        if self._key[0] != generation:
            self._key = generation, secrets.token_bytes(KEY_BYTES)
        return self._key[1]
