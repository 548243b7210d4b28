"""The rendezvous as a worker's client shows it, played by a test: a worker that joins waits until the test answers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeAlias

from rendezvous.core.model import Endpoint
from rendezvous.core.reports import RecoveryDecision, Report
from tests.waiting import LIMIT_SECONDS
from worker_runtime.rendezvous import (
    Action,
    Assignment,
    Depart,
    Interrupt,
    Membership,
    OfferResize,
    RendezvousError,
)

Notice: TypeAlias = Interrupt | OfferResize | Depart


@dataclass
class Call:
    """A worker wants to join.

    after: the last generation that it knows.
    report: what the worker reports.
    """

    after: int
    report: Report
    _answer: "SimpleQueue[Membership | Exception]" = field(default_factory=SimpleQueue)

    def answer(self, membership: Membership | Exception) -> None:
        """Publish, or refuse."""
        self._answer.put(membership)

    def wait(self) -> Membership:
        """For the caller."""
        answer = self._answer.get(timeout=LIMIT_SECONDS)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Registrar:
    """A client; for any thread.

    calls: the calls of `join`, as they come.
    declared: what `declare` was called with.
    is_closed: whether it is.
    """

    def __init__(self) -> None:
        self.calls: SimpleQueue[Call] = SimpleQueue()
        self.declared: list[bool] = []
        self.is_closed = False
        self._open: list[Call] = []
        self._notices: SimpleQueue[Notice | Exception | None] = SimpleQueue()

    def notify(self, notice: Notice | Exception) -> None:
        """Let the worker hear this."""
        self._notices.put(notice)

    def read(self) -> Call:
        """The next one that wants to join."""
        return self.calls.get(timeout=LIMIT_SECONDS)

    def join(self, after: int, report: Report | None = None) -> Membership:
        """As the client's."""
        call = Call(after, report or Report())
        self._open.append(call)
        self.calls.put(call)
        return call.wait()

    def await_sequencer(self, generation: int) -> Endpoint:
        """As the client's; a test replaces the caller."""
        raise AssertionError(generation)

    def follow(self) -> Iterator[Notice]:
        """As the client's."""
        while (notice := self._notices.get()) is not None:
            if isinstance(notice, Exception):
                raise notice
            yield notice

    def declare(self, *, needs_state: bool = False) -> None:
        """As the client's."""
        self.declared.append(needs_state)

    def close(self) -> None:
        """As the client's."""
        self.is_closed = True
        for call in self._open:
            call.answer(RendezvousError("the connection was closed"))
        self._notices.put(None)


def publish(number: int, action: Action, survivors: tuple[int, ...] = (), rank: int = 0, size: int = 1) -> Membership:
    """A generation in which this worker has that rank."""
    numbers = Assignment(rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1)
    decision = RecoveryDecision(action, survivors, reason="rank 1 was lost")
    return Membership(number, numbers, bytes([number]) * 32, decision)
