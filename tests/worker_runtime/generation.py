"""A generation whose other members, store and sequencer a test plays: nothing of gloo, no process, no network."""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, cast

from rendezvous.core.reports import Done
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.conversation import Sequencer
from worker_runtime.coordination.group import Group
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.ordering.requests import Kind, Release, Request, Signature
from worker_runtime.coordination.wire import Frame, decode_head, decode_requests, encode_releases
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.losses import Retry
from worker_runtime.engine.succession import Succession
from worker_runtime.groups.torch_groups import TorchGroup, TorchGroups
from worker_runtime.rendezvous import Action, Endpoint, Membership, RecoveryDecision

LARGE = 300_000  # elements of float32: more than travel inside a request
_ANY_REQUEST = Request(0, "", Signature(Kind.BARRIER))  # of an answer only the numbers are sent


class Pending:
    """A work that ends on order, well or not."""

    def __init__(self, *, is_done: bool = False, is_bad: bool = False) -> None:
        self.is_done = is_done
        self.is_bad = is_bad

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """As torch's."""
        if self.is_bad:
            raise RuntimeError("Connection closed by peer")
        if not self.is_done:
            raise RuntimeError(f"Timed out waiting {timeout}")
        return True

    def is_completed(self) -> bool:
        """As torch's."""
        return self.is_done or self.is_bad


class Played:
    """A torch group, and its connections: everything begins, and fails when it is interrupted, unless it is stuck."""

    def __init__(self) -> None:
        self.works: list[Pending] = []
        self.is_stuck = False
        self.is_quick = False  # what begins is done
        self.lingers = False  # what is interrupted ends in its own time
        self.silent = ""  # the address of a host that is cut off
        self.is_shut = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def begin(*_: object, **__: object) -> Pending:
            self.works.append(Pending(is_done=self.is_quick))
            return self.works[-1]

        return begin

    def shut_down(self) -> Callable[[], bool]:
        """As `Connections`."""
        for work in self.works:
            work.is_bad = not work.is_done and not self.lingers
        return lambda: not self.is_stuck

    def find_silent(self, limit_seconds: float) -> str:
        """The address that the test sets."""
        del limit_seconds
        return self.silent

    def shutdown(self) -> None:
        """As torch's group."""
        self.is_shut = True


@dataclass(frozen=True)
class _PlayedGroup(Group):
    """A group whose sequencer is the test's."""

    link: Link


def connect(group: _PlayedGroup, *_: object) -> Link:
    """As `group.connect`."""
    return group.link


class PlayedGeneration:
    """One member's side of a generation, and the sequencer's.

    Args:
        number: the number of the generation.
        rank, size: the rank and size of the member.
    """

    def __init__(self, number: int, rank: int = 0, size: int = 2) -> None:
        ours, theirs = socket.socketpair()
        self.played = Played()
        self.sequencer = Sequencer(theirs)
        self.link = Link(ours)
        groups = TorchGroups(rank, lambda *_: (cast("TorchGroup", self.played), self.played))
        groups.find(-1, tuple(range(size)))
        self.gate = threading.Event()  # for tests in which it takes time to form it
        endpoint, key = Endpoint("127.0.0.1", 1), bytes([number]) * 32
        self.group = _PlayedGroup(number, rank, size, groups, endpoint, key, self.link)

    def form(self, membership: Membership, *_: object, **__: object) -> Group | None:
        """As `group.form`, once the gate is open."""
        if membership.assignment.size == 1:
            return None
        assert self.gate.wait(LIMIT_SECONDS)
        return self.group

    @property
    def is_closed(self) -> bool:
        """This member has ended its connections."""
        return self.played.is_shut and self.link.fileno() == -1

    def release(self, *numbers: int, index: int = 0, ranks: tuple[int, ...] = (0, 1), payload: bytes = b"") -> None:
        """Answer requests by their numbers, with growing indices."""
        for number in numbers:
            release = Release(index + number, _ANY_REQUEST, ranks)
            self.sequencer.send(Frame.RELEASES, encode_releases(number, release, [payload]))

    def read_request(self) -> tuple[str, bytes]:
        """The name and the payload of the next request, which comes alone."""
        while True:
            kind, body = self.sequencer.read()
            if kind == Frame.REQUESTS:
                ((head, _, payload),) = decode_requests(body, 0, len(body))
                return decode_head(head)[2], bytes(payload)

    def release_set(self, number: int, process_set: int, ranks: tuple[int, ...]) -> None:
        """Answer a request for a process set."""
        release = Release(number, _ANY_REQUEST, ranks, sizes=(ranks,) * self.group.size, value=process_set)
        self.sequencer.send(Frame.RELEASES, encode_releases(number, release, [b""]))

    def lose(self) -> None:
        """The sequencer says that a rank was lost, which is the end of all it has to say."""
        self.sequencer.send(Frame.FAILURE, b"rank 1 was lost")

    def close(self) -> None:
        """End the sequencer's side."""
        self.sequencer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self.link.close()


def make_succession(generation: PlayedGeneration, note: Callable[[str], None] = lambda _: None) -> Succession:
    """Of an engine in that generation, and who learns of its troubles."""
    policy = Retry(lambda _, reason: note(reason))
    return Succession(Engine(generation.group, generation.link, policy, 5.0, generation.group.generation), policy)


def retry(*survivors: int, done: tuple[Done, ...] = ()) -> RecoveryDecision:
    """The decision that these ranks continue."""
    return RecoveryDecision(Action.RETRY, survivors, done)
