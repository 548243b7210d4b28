"""Agents that a test plays: they start, answer and end as the test says, and need no process."""

import asyncio
from collections.abc import AsyncIterator, Collection

from hvdrun import __version__
from hvdrun.errors import LaunchError
from rendezvous.core.model import Endpoint
from rendezvous.wire.orders import (
    Addresses,
    AgentMessage,
    Hello,
    ListAddresses,
    Listening,
    Order,
    ProbePeers,
    ProbeResults,
    Proof,
    Release,
)

HOW_IT_ENDED = "its agent ended"
TUNNEL_PORT = 7000


class PlayedAgent:
    """A `Transport` and the agent behind it. The agent ends when it is released or abandoned, or by `end`.

    failure: why it cannot be started.
    starts: it starts immediately, and not only when `may_start` is set.
    obeys: it ends when it is released.
    """

    def __init__(self, *, failure: str = "", starts: bool = True, obeys: bool = True) -> None:
        self.failure = failure
        self.orders: list[Order] = []
        self.story: list[str] = []  # what became of it
        self.outbox: asyncio.Queue[AgentMessage | Exception | None] = asyncio.Queue()  # what it reports; None: its end
        self.may_start = asyncio.Event()
        self._obeys = obeys
        if starts:
            self.may_start.set()

    @property
    def is_open(self) -> bool:
        """Whether the agent was started, and was not closed."""
        return "opened" in self.story and "closed" not in self.story

    @property
    def is_abandoned(self) -> bool:
        """Whether the launcher has given the agent up."""
        return "abandoned" in self.story

    def end(self) -> None:
        """Let the agent end."""
        self.outbox.put_nowait(None)

    async def open(self) -> None:
        """See `Transport`."""
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.story.append("called off")
            raise
        if self.failure:
            raise LaunchError(self.failure)
        self.story.append("opened")

    def send(self, order: Order) -> None:
        """See `Transport`."""
        self.orders.append(order)
        if self._obeys and isinstance(order, Release):
            self.end()

    async def messages(self) -> AsyncIterator[AgentMessage]:
        """See `Transport`."""
        while (message := await self.outbox.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message

    async def wait(self) -> str:
        """See `Transport`."""
        return HOW_IT_ENDED

    async def tunnel(self, _port: int) -> int:
        """See `Transport`."""
        return TUNNEL_PORT

    async def kill(self) -> None:
        """See `Transport`."""
        self.story.append("abandoned")
        self.end()

    async def close(self) -> None:
        """See `Transport`."""
        self.story.append("closed")


class Machine(PlayedAgent):
    """An agent that is asked for its addresses, and whom it reaches.

    unreached: the hosts that it does not reach, LAUNCHER among them.
    failure, starts: see `PlayedAgent`.
    hello: the first that it says; None: it ends instead.
    answers: it does not end when it is asked.
    tunnel_failure: why it can have no tunnel.
    """

    def __init__(
        self,
        *addresses: str,
        failure: str = "",
        starts: bool = True,
        unreached: Collection[str] = (),
        hello: AgentMessage | None = Hello(__version__),  # noqa: B008 - it does not change
        answers: bool = True,
        tunnel_failure: str = "",
    ) -> None:
        super().__init__(failure=failure, starts=starts)
        self.answers = answers
        self.tunnelled: list[int] = []
        self._addresses = addresses
        self._unreached = unreached
        self._tunnel_failure = tunnel_failure
        self._token = b""  # of the last check
        self.outbox.put_nowait(hello)

    @property
    def asked(self) -> int:
        """How often it was asked for its addresses."""
        return sum(isinstance(order, ListAddresses) for order in self.orders)

    def send(self, order: Order) -> None:
        """See `Transport`."""
        super().send(order)
        match order:
            case ListAddresses() if not self.answers:
                self.end()
            case ListAddresses(token):
                self._token = token
                listening = (Listening("eth7", Endpoint(address, 1), 24) for address in self._addresses)
                self.outbox.put_nowait(Addresses(tuple(listening), token))
            case ProbePeers(targets):
                proofs = (
                    Proof(target.host, target.endpoint.address, self._addresses[0], 1.0)
                    for target in targets
                    if target.host not in self._unreached
                )
                self.outbox.put_nowait(ProbeResults(tuple(proofs), self._token))
            case _:
                pass

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        if self._tunnel_failure:
            raise LaunchError(self._tunnel_failure)
        self.tunnelled.append(port)
        return await super().tunnel(port)


class Doors:
    """A rendezvous that listens at the ports 1, 2, 3, where it is asked for no other."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    async def open(self, address: str, port: int = 0) -> int:
        """See `rendezvous.server.server.Server`."""
        self.opened.append(address)
        return port or len(self.opened)


async def ignore(_host: str, _message: AgentMessage) -> None:
    """Show nothing of what an agent reports."""


def refuse(error: BaseException) -> None:
    """Nothing of a launcher's own is to fail."""
    raise AssertionError(error)
