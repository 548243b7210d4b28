"""Carries out what the core decides: orders to the agents of all hosts, and their workers' output back."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from hvdrun.errors import HostLostEarlyError, LaunchError, raise_failures
from hvdrun.transport.transport import Transport
from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.model import Worker
from rendezvous.errors import WireError
from rendezvous.orders import Begin, Found, Hello, Hold, Input, Order, Probed, Release, Telling, Wait

RELEASE_SECONDS = 10.0  # more than a released agent needs to clear away
_LOOK_SECONDS = 0.25  # between two looks whether a host is lost
_SIGNS_PER_PATIENCE = 6


class Fleet:
    """The agents of one job, one per host.

    show: takes what an agent tells, and holds its host back while the reader is behind.
    lose: is told of a host whose agent has ended before it was released, and how.
    patience_seconds: how long an agent that has not been told of the job may hear nothing; None: without a limit.
    """

    def __init__(
        self,
        transports: Mapping[str, Transport],
        show: Callable[[Telling], Awaitable[None]],
        lose: Callable[[str, str], None],
        patience_seconds: float | None = None,
    ) -> None:
        self._transports = transports
        self._show = show
        self._lose = lose
        self._patience_seconds = patience_seconds
        self._early: dict[str, list[Launch | Terminate]] = {host: [] for host in transports}
        self._awaited = dict.fromkeys(transports)
        self._answers: dict[str, asyncio.Queue[Telling | str]] = {host: asyncio.Queue() for host in transports}
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._encouraging: asyncio.Task[None] | None = None
        self._abandoned: dict[str, asyncio.Task[None]] = {}
        self._released = False
        self._held = False
        self._pieces = 0  # of output, so far
        self._showing = 0  # of them, now being shown

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have an agent, in the order of the placement."""
        return tuple(self._transports)

    @property
    def awaited(self) -> tuple[str, ...]:
        """Those whose agent has not been started."""
        return tuple(self._awaited)

    def has_begun(self, host: str) -> bool:
        """The host's agent has been told of the job."""
        return host not in self._early

    async def open(self) -> None:
        """Start all agents, in parallel, and listen to each from then on.

        Raises:
            LaunchError: some could not be started; all of them are named.
        """

        async def open_one(host: str) -> None:
            await self._transports[host].open()
            del self._awaited[host]
            self._listening[host] = asyncio.create_task(self._listen(host))

        if self._patience_seconds is not None:
            self._encouraging = asyncio.create_task(self._encourage(self._patience_seconds))
        results = await asyncio.gather(*map(open_one, self._transports), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, LaunchError):
                raise result
        raise_failures([result for result in results if isinstance(result, LaunchError)], len(results))

    def send(self, host: str, order: Order) -> None:
        """Send an order that belongs before the beginning."""
        self._transports[host].send(order)

    async def hear(self, host: str) -> Telling:
        """What a host's agent says next in answer to such an order, or of itself.

        Raises:
            LaunchError: it has ended.
        """
        answer = await self._answers[host].get()
        if isinstance(answer, str):
            self._answers[host].put_nowait(answer)  # whoever asks again is told the same
            raise HostLostEarlyError(host, answer)
        return answer

    async def tunnel(self, host: str, port: int) -> int:
        """The port of that host's loopback address that leads to this machine's `port`.

        Raises:
            LaunchError: there can be none.
        """
        return await self._transports[host].tunnel(port)

    def begin(self, host: str, begin: Begin) -> None:
        """Tell a host's agent of the job, with the orders that came before."""
        for order in (begin, *self._early.pop(host)):
            self._transports[host].send(order)
        if self._held:
            self._transports[host].send(Hold(held=True))

    def order(self, effect: Launch | Terminate) -> None:
        """Send an order to the agent of the worker's host, once that has been told of the job."""
        host = effect.worker.slot.host
        if host in self._early:
            self._early[host].append(effect)
        else:
            self._transports[host].send(effect)

    def withdraw(self, worker: Worker) -> None:
        """Forget the orders for a worker on a host whose agent has not been told of the job."""
        self._early[worker.slot.host] = [order for order in self._early[worker.slot.host] if order.worker != worker]

    def hold(self, *, held: bool) -> None:
        """Tell all agents that this launcher's silence is no death, or that it speaks again."""
        self._held = held
        for host, transport in self._transports.items():
            if host not in self._early:  # an agent that has not been told of the job is told then
                transport.send(Hold(held))
            elif self._patience_seconds is not None:
                transport.send(Wait(None if held else self._patience_seconds))

    def feed(self, host: str, data: bytes) -> None:
        """Send a piece of standard input to the worker on this host that reads it."""
        self._transports[host].send(Input(data))

    async def release(self, is_lost: Callable[[str], bool] = lambda _: False) -> None:
        """Let all agents go, and return when what their workers have written has been shown.

        A reader that pauses is waited for; an agent that stays silent is not, beyond RELEASE_SECONDS; and a host that
        is lost is abandoned.
        """
        self._released = True
        for transport in self._transports.values():
            transport.send(Release())
        waiting = set(self._listening.values())
        pieces, patience_seconds = self._pieces, RELEASE_SECONDS
        while waiting:
            for host in [host for host in self._listening if host not in self._abandoned and is_lost(host)]:
                self._abandoned[host] = asyncio.create_task(self._transports[host].abandon())
            pause_seconds = min(_LOOK_SECONDS, patience_seconds)
            done, waiting = await asyncio.wait(waiting, timeout=pause_seconds, return_when=asyncio.FIRST_COMPLETED)
            if done or self._showing or self._pieces > pieces:
                pieces, patience_seconds = self._pieces, RELEASE_SECONDS
            elif (patience_seconds := patience_seconds - pause_seconds) <= 0:
                return

    async def close(self) -> None:
        """End every agent that is left, and wait for its end."""
        self._released = True
        tasks = [*self._listening.values(), *([self._encouraging] if self._encouraging is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*self._abandoned.values())
        await asyncio.gather(*(transport.close() for transport in self._transports.values()))

    async def _encourage(self, patience_seconds: float) -> None:
        """Tell the agents that have not been told of the job, again and again, that this launcher is there."""
        while self._early:
            for host in self._early:
                if host in self._listening and not self._held:
                    self._transports[host].send(Wait(patience_seconds))
            await asyncio.sleep(patience_seconds / _SIGNS_PER_PATIENCE)

    async def _listen(self, host: str) -> None:
        transport = self._transports[host]
        try:
            async for telling in transport.tellings():
                if isinstance(telling, Hello | Found | Probed):
                    self._answers[host].put_nowait(telling)
                    continue
                self._pieces += 1
                self._showing += 1
                try:
                    await self._show(telling)
                finally:
                    self._showing -= 1
                await asyncio.sleep(0)  # nothing above need have waited, and the agents' reports come through this loop
            how = await transport.wait()
        except WireError as error:
            how = str(error)
        self._answers[host].put_nowait(how)
        if not self._released:
            self._lose(host, how)
