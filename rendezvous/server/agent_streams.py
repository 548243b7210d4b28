"""The streams of agents that outlive their launcher: orders to them, and their numbered messages back.

A message is acknowledged when the launcher has shown it. A launcher that is started again gets the numbers of the
messages that were shown before, and shows none twice.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from rendezvous.wire import codec
from rendezvous.wire.orders import AgentMessage, Order

KeepShown: TypeAlias = Callable[[str, int, Callable[[], None]], None]
NoteTaken: TypeAlias = Callable[[str, int], None]

_ANSWER_SECONDS = 3.0  # how long an answer waits for its messages to be shown; the agent gives a call more


class AgentStream:
    """The stream of one agent; belongs to one event loop.

    Args:
        shown: the number of the last message that was shown before.
        keep: notes for the next launcher that the message of a number was shown, and then calls its second argument.
        note_taken: is called with the number of each message just before it is shown.

    note_closed: called when the agent's stream of orders ends.
    """

    def __init__(
        self,
        shown: int = 0,
        keep: Callable[[int, Callable[[], None]], None] = lambda _, done: done(),
        note_taken: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.note_taken = note_taken
        self._shown = shown
        self._keep = keep
        self.note_closed: Callable[[], None] = lambda: None
        self._received = shown
        self._orders: asyncio.Queue[Order | None] | None = None  # None while the stream is not open
        self._greet: Callable[[], Iterable[Order]] = tuple
        self._take: Callable[[AgentMessage | None, int], None] | None = None
        self._changed = asyncio.Event()

    @property
    def shown(self) -> int:
        """The number of the last message that was shown."""
        return self._shown

    @property
    def is_open(self) -> bool:
        """The agent takes orders."""
        return self._orders is not None

    def follow(
        self, take: Callable[[AgentMessage | None, int], None], greet: Callable[[], Iterable[Order]] = tuple
    ) -> None:
        """Receive the agent's messages from now on.

        Args:
            take: is called with each message and its number, once; with None when the agent has nothing more to say.
            greet: the orders that hold, with which each stream begins.
        """
        self._take, self._greet = take, greet
        self._note_change()

    def send(self, order: Order) -> bool:
        """Send an order; False where no stream is open. An order may be lost with its stream."""
        if self._orders is None:
            return False
        self._orders.put_nowait(order)
        return True

    def note_shown(self, number: int) -> None:
        """Note that the message of this number, and all before it, have been shown."""
        self._keep(number, partial(self._acknowledge, number))

    async def orders(self) -> AsyncGenerator[Order, None]:
        """The orders that hold now, then each new one; until the generator is closed, or another one begins."""
        if self._orders is not None:
            self._orders.put_nowait(None)
        orders = self._orders = asyncio.Queue()
        try:
            for order in self._greet():
                yield order
            while (order_or_end := await orders.get()) is not None:
                yield order_or_end
        finally:
            if self._orders is orders:
                self._orders = None
                self.note_closed()

    async def receive(self, first: int, messages: Sequence[bytes], *, is_last: bool = False) -> int:
        """Take messages that are new; returns the number up to which all have been shown, after a moment at most.

        Args:
            first: the number of the first.
            messages: encoded.
            is_last: the agent has nothing more to say.

        Raises:
            WireError: one is malformed.
        """
        last = first + len(messages) - 1
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while self._take is None:
                    await self._changed.wait()
                for number, data in enumerate(messages, first):
                    if number > self._received:
                        message = codec.decode_agent_message(data)
                        self._received = number
                        self._take(message, number)
                if is_last:
                    self._take(None, last)
                while self._shown < last:
                    await self._changed.wait()
        except TimeoutError:  # the agent sends them again
            pass
        return self._shown

    def _acknowledge(self, number: int) -> None:
        self._shown = max(self._shown, number)
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class AgentStreams:
    """The streams of all agents of a job, by the identity that an agent's certificate has.

    Args:
        shown: the numbers of the last messages that a former launcher has shown.
        keep: notes for the next launcher that a message of an agent was shown, and then calls its last argument; None:
            nothing is noted.
        note_taken: is called with the number of each message of an agent just before it is shown.
    """

    def __init__(
        self,
        shown: Mapping[str, int] | None = None,
        keep: KeepShown | None = None,
        note_taken: NoteTaken | None = None,
    ) -> None:
        self._before = dict(shown or {})
        self._note_taken = note_taken or (lambda _agent, _number: None)
        self._keep = keep or (lambda _agent, _number, done: done())
        self._streams: dict[str, AgentStream] = {}

    @property
    def shown(self) -> dict[str, int]:
        """The numbers of the last messages that were shown."""
        return self._before | {identity: stream.shown for identity, stream in self._streams.items()}

    def of(self, identity: str) -> AgentStream:
        """The stream of one agent."""
        if identity not in self._streams:
            self._streams[identity] = AgentStream(
                self._before.get(identity, 0), partial(self._keep, identity), partial(self._note_taken, identity)
            )
        return self._streams[identity]
