"""One agent as its launcher has it, from its start to the last that comes from it."""

import asyncio
from collections.abc import Awaitable, Callable

from hvdrun.errors import HostLostEarlyError, HostLostError
from hvdrun.processes.background import BackgroundTasks
from hvdrun.transport.transport import Transport
from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import Worker
from rendezvous.errors import WireError
from rendezvous.wire.orders import Addresses, AgentMessage, Begin, Hello, Hold, Order, ProbeResults, Release, Stop, Wait


class AgentConnection:
    """The way to one agent, the orders it has not had yet, and what it tells.

    tasks: listen to the agent.
    show: takes what the agent tells, and holds its host back while the reader is behind.
    lose: is told how the agent has ended, if that was before it was released.
    """

    def __init__(
        self,
        host: str,
        transport: Transport,
        tasks: BackgroundTasks,
        show: Callable[[AgentMessage], Awaitable[None]],
        lose: Callable[["AgentConnection", str], None],
    ) -> None:
        self.host = host
        self.pieces = 0  # of output, so far
        self.showing = 0  # of them, now being shown
        self._transport = transport
        self._tasks = tasks
        self._show = show
        self._lose = lose
        self._early: list[Launch | Terminate] | None = []  # None once the agent has been told of the job
        self._answers: asyncio.Queue[AgentMessage | str] = asyncio.Queue()
        self._opening: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._abandoning: asyncio.Task[None] | None = None
        self._is_released = False

    @property
    def is_open(self) -> bool:
        """The agent has been started."""
        return self._listening is not None

    @property
    def has_begun(self) -> bool:
        """The agent has been told of the job."""
        return self._early is None

    @property
    def listening(self) -> asyncio.Task[None] | None:
        """Done once nothing more comes from the agent; None before it was started."""
        return self._listening

    async def open(self) -> None:
        """Start the agent, and listen to it from then on.

        Raises:
            LaunchError: it cannot be started.
        """
        # A task of its own, so that `close` can cancel it and wait until it has ended.
        self._opening = asyncio.create_task(self._start(), name="open the way to an agent")
        await self._opening
        self._listening = self._tasks.create_task(self._listen(), name="listen to an agent")

    def send(self, order: Order) -> None:
        """Send an order that has no worker."""
        self._transport.send(order)

    async def hear(self) -> AgentMessage:
        """What the agent says next in answer to such an order, or of itself.

        Raises:
            LaunchError: it has ended.
        """
        answer = await self._answers.get()
        if isinstance(answer, str):
            self._answers.put_nowait(answer)  # whoever asks again is told the same
            raise (HostLostError if self.has_begun else HostLostEarlyError)(self.host, answer)
        return answer

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        return await self._transport.tunnel(port)

    def begin(self, begin: Begin, *, held: bool, is_stopping: bool = False) -> None:
        """Tell the agent of the job, with the orders that came before."""
        early, self._early = self._early or [], None
        for order in (begin, *early):
            self.send(order)
        if held:
            self.send(Hold(held=True))
        if is_stopping:
            self.send(Stop())

    def order(self, effect: Launch | Terminate) -> None:
        """Send an order about a worker, once the agent has been told of the job."""
        if self._early is None:
            self.send(effect)
        else:
            self._early.append(effect)

    def withdraw(self, worker: Worker) -> None:
        """Forget the orders for a worker; of an agent that has not been told of the job."""
        self._early = [order for order in self._early or () if order.worker != worker]

    def hold(self, *, held: bool, patience_seconds: float | None) -> None:
        """Tell the agent that this launcher's silence is no death, or that it speaks again.

        patience_seconds: how long one that has not been told of the job may hear nothing; None: without a limit.
        """
        if self.has_begun:  # an agent that has not been told of the job is told then
            self.send(Hold(held))
        elif patience_seconds is not None:
            self.send(Wait(None if held else patience_seconds))

    def release(self, exit_code: int) -> None:
        """Let the agent go; its end is no loss any more.

        exit_code: what it ends with, if it has come by itself.
        """
        self._is_released = True
        self.send(Release(exit_code))

    def abandon(self) -> None:
        """Give the agent up, without waiting; its end is no loss any more."""
        self._is_released = True
        self._answers.put_nowait("it was given up")
        if self._abandoning is None:
            self._abandoning = self._tasks.create_task(self._transport.kill(), name="abandon an agent")

    async def close(self, *, abandons: bool = False) -> None:
        """End the agent, if it has not ended, and wait for that.

        abandons: without waiting for what it clears away.
        """
        self._is_released = True
        self._answers.put_nowait("the job needs it no more")
        for task in (self._opening, self._listening):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._abandoning is not None:
            await asyncio.wait({self._abandoning})
            abandons |= self._abandoning.cancelled()  # since the job has ended
        if abandons:
            await self._transport.kill()
        await self._transport.close()

    async def _start(self) -> None:
        await self._transport.open()

    async def _listen(self) -> None:
        try:
            async for message in self._transport.messages():
                if isinstance(message, Hello | Addresses | ProbeResults):
                    self._answers.put_nowait(message)
                    continue
                self.pieces += 1
                self.showing += 1
                try:
                    await self._show(message)
                finally:
                    self.showing -= 1
                await asyncio.sleep(0)  # nothing above need have waited, and the agents' reports come through this loop
            how = await self._transport.wait()
        except WireError as error:
            how = str(error)
        self._answers.put_nowait(how)
        if not self._is_released:
            self._lose(self, how)
