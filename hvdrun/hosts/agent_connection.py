"""The connection of the launcher to one agent, from its start to its last message."""

import asyncio
from collections.abc import Awaitable, Callable

from hvdrun.errors import HostLostEarlyError, HostLostError
from hvdrun.processes.background import BackgroundTasks
from hvdrun.transport.transport import Transport
from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import Worker
from rendezvous.errors import WireError
from rendezvous.wire.orders import (
    Addresses,
    AgentMessage,
    Begin,
    Hello,
    Hold,
    Order,
    ProbeResults,
    Release,
    Stop,
    Wait,
)


class AgentConnection:
    """The connection to one agent, the orders that wait for its configuration, and its messages.

    Args:
        host: its name in the job.
        transport: the transport to the host; it is not open.
        tasks: receive the messages.
        show: takes the host and each message, and blocks the host while the reader of the output is behind.
        lose: takes how the agent has stopped, if that was before it was released.
        has_begun: a former launcher has sent the agent its configuration.

    has_launched: the agent has got a worker to launch, and reports from then on.
    """

    def __init__(
        self,
        host: str,
        transport: Transport,
        tasks: BackgroundTasks,
        show: Callable[[str, AgentMessage], Awaitable[None]],
        lose: Callable[["AgentConnection", str], None],
        *,
        has_begun: bool = False,
    ) -> None:
        self.host = host
        self.message_count = 0  # that have come
        self.showing = 0  # messages that `show` handles now
        self.listening: asyncio.Task[None] | None = None  # done once the agent sends nothing more
        self._transport = transport
        self._tasks = tasks
        self._show = show
        self._lose = lose
        # None once the agent has its configuration.
        self._early: list[Launch | Terminate] | None = None if has_begun else []
        self.has_launched = has_begun
        self._answers: asyncio.Queue[AgentMessage | str] = asyncio.Queue()
        self._opening: asyncio.Task[None] | None = None
        self._abandoning: asyncio.Task[None] | None = None
        self._is_released = False

    @property
    def is_open(self) -> bool:
        """The agent has been started."""
        return self.listening is not None

    @property
    def has_begun(self) -> bool:
        """The agent has its configuration."""
        return self._early is None

    async def open(self) -> None:
        """Start the agent, and receive its messages from then on.

        Raises:
            LaunchError: it cannot be started.
        """
        # A separate task, so that `close` can cancel it and wait until it has stopped.
        self._opening = asyncio.create_task(self._transport.open(), name="open the way to an agent")
        await self._opening
        self.listening = self._tasks.create_task(self._listen(), name="listen to an agent")

    def send(self, order: Order) -> None:
        """Send an order that has no worker."""
        self._transport.send(order)

    async def hear(self) -> AgentMessage:
        """Receive the next answer of the agent.

        Raises:
            LaunchError: it has stopped.
        """
        answer = await self._answers.get()
        if isinstance(answer, str):
            self._answers.put_nowait(answer)  # a later call raises the same
            if self.has_begun:
                raise HostLostError(self.host, answer)
            raise HostLostEarlyError(self.host, answer)
        return answer

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        return await self._transport.tunnel(port)

    def begin(self, begin: Begin, *, held: bool, is_stopping: bool = False) -> None:
        """Send the configuration, and the orders that waited for it."""
        early, self._early = self._early or [], None
        self.send(begin)
        for order in early:
            self.order(order)
        if held:
            self.send(Hold(held=True))
        if is_stopping:
            self.send(Stop())

    def order(self, effect: Launch | Terminate) -> None:
        """Send an order about a worker, now or after the configuration."""
        if self._early is None:
            self.has_launched = self.has_launched or isinstance(effect, Launch)
            self.send(effect)
        else:
            self._early.append(effect)

    def withdraw(self, worker: Worker) -> None:
        """Drop the orders for a worker, if the agent has no configuration yet."""
        if self._early is not None:
            self._early = [order for order in self._early if order.worker != worker]

    def hold(self, *, held: bool, launcher_timeout_seconds: float | None) -> None:
        """Tell the agent that this launcher is suspended, or has resumed.

        launcher_timeout_seconds: how long an agent without a configuration waits for a sign of the launcher; None: no
            limit.
        """
        # An agent without a configuration gets this with it.
        if self.has_begun:
            self.send(Hold(held))
        elif launcher_timeout_seconds is not None:
            self.send(Wait(None if held else launcher_timeout_seconds))

    def release(self, exit_code: int) -> None:
        """Release the agent; its end is then no loss.

        Args:
            exit_code: the exit code of an agent that has joined by itself.
        """
        self._is_released = True
        self.send(Release(exit_code))

    def abandon(self) -> None:
        """Kill the agent, without waiting; its end is then no loss."""
        self._is_released = True
        self._answers.put_nowait("it was given up")
        if self._abandoning is None:
            self._abandoning = self._tasks.create_task(self._transport.kill(), name="abandon an agent")

    async def close(self, *, abandons: bool = False) -> None:
        """Stop the agent, and wait until it has stopped.

        Args:
            abandons: kill it, without waiting until it has stopped its workers.
        """
        self._is_released = True
        self._answers.put_nowait("the job no longer needs it")
        for task in (self._opening, self.listening):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        if self._abandoning is not None:
            await asyncio.wait({self._abandoning})
            abandons |= self._abandoning.cancelled()  # because the job has ended
        if abandons:
            await self._transport.kill()
        await self._transport.close()

    async def _listen(self) -> None:
        try:
            async for message in self._transport.messages():
                if isinstance(message, Hello | Addresses | ProbeResults):
                    self._answers.put_nowait(message)
                    continue
                self.message_count += 1
                self.showing += 1
                try:
                    await self._show(self.host, message)
                finally:
                    self.showing -= 1
                await asyncio.sleep(0)  # let the loop serve the reports of agents, if nothing above has waited
            how = await self._transport.wait()
        except WireError as error:
            how = str(error)

        self._answers.put_nowait(how)
        if not self._is_released:
            self._lose(self, how)
