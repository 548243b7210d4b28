"""Carries out what the core decides: orders to the agents of all hosts, and their workers' output back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from hvdrun.errors import LaunchError
from hvdrun.transport.transport import Transport
from rendezvous.core.effects import Launch, Terminate
from rendezvous.errors import WireError
from rendezvous.orders import Begin, Hold, Input, Release, Telling

RELEASE_SECONDS = 10.0  # more than a released agent needs to clear away


class Fleet:
    """The agents of one job, one per host.

    show: takes what an agent tells, and holds its host back while the reader is behind.
    lose: is told of a host whose agent has ended before it was released, and how.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        show: Callable[[Telling], Awaitable[None]],
        lose: Callable[[str, str], None],
    ) -> None:
        self._transports = transports
        self._show = show
        self._lose = lose
        self._early: dict[str, list[Launch | Terminate]] = {host: [] for host in transports}
        self._listening: list[asyncio.Task[None]] = []
        self._released = False
        self._held = False
        self._pieces = 0  # of output, so far
        self._showing = 0  # of them, now being shown

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have an agent, in the order of the placement."""
        return tuple(self._transports)

    async def open(self) -> None:
        """Start all agents, in parallel.

        Raises:
            LaunchError: some could not be started; all of them are named.
        """
        results = await asyncio.gather(
            *(transport.open() for transport in self._transports.values()), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, LaunchError):
                raise failure
        if failures:
            raise LaunchError(" ".join(str(failure) for failure in failures))

    def begin(self, host: str, begin: Begin) -> None:
        """Tell a host's agent of the job, with the orders that came before, and listen to it from now on."""
        for order in (begin, *self._early.pop(host)):
            self._transports[host].send(order)
        if self._held:
            self._transports[host].send(Hold(held=True))
        self._listening.append(asyncio.create_task(self._listen(host)))

    def order(self, effect: Launch | Terminate) -> None:
        """Send an order to the agent of the worker's host, once that has been told of the job."""
        host = effect.worker.slot.host
        if host in self._early:
            self._early[host].append(effect)
        else:
            self._transports[host].send(effect)

    def hold(self, *, held: bool) -> None:
        """Tell all agents that this launcher's silence is no death, or that it speaks again."""
        self._held = held
        for host, transport in self._transports.items():
            if host not in self._early:  # an agent that has not been told of the job is told then
                transport.send(Hold(held))

    def feed(self, host: str, data: bytes) -> None:
        """Send a piece of standard input to the worker on this host that reads it."""
        self._transports[host].send(Input(data))

    async def release(self) -> None:
        """Let all agents go, and return when what their workers have written has been shown.

        A reader that pauses is waited for; an agent that stays silent is not, beyond RELEASE_SECONDS.
        """
        self._released = True
        for transport in self._transports.values():
            transport.send(Release())
        waiting = set(self._listening)
        while waiting:
            before = self._pieces
            done, waiting = await asyncio.wait(waiting, timeout=RELEASE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not done and not self._showing and self._pieces == before:
                return

    async def close(self) -> None:
        """End every agent that is left, and wait for its end."""
        self._released = True
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await asyncio.gather(*(transport.close() for transport in self._transports.values()))

    async def _listen(self, host: str) -> None:
        transport = self._transports[host]
        try:
            async for telling in transport.tellings():
                self._pieces += 1
                self._showing += 1
                try:
                    await self._show(telling)
                finally:
                    self._showing -= 1
            how = await transport.wait()
        except WireError as error:
            how = str(error)
        if not self._released:
            self._lose(host, how)
