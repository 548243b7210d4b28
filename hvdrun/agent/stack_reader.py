"""Answers where the workers of this host are, beside all else that the agent does."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from hvdrun.processes.background import cancel_and_wait, in_thread, start_task
from hvdrun.spec.stacks import Stack, WorkerStack, encode_stacks
from rendezvous.core.model import Worker
from rendezvous.wire.hangs import AskStacks, Stacks
from rendezvous.wire.orders import AgentMessage

LIMIT_SECONDS = 1.0  # for the workers to answer: hvdrun stacks promises 2 s for all


class StackReader:
    """Asks the workers of this host; belongs to one event loop.

    Args:
        list_workers: the main processes of the live workers.
        tell: sends an answer.
    """

    def __init__(self, list_workers: Callable[[], Mapping[Worker, int]], tell: Callable[[AgentMessage], None]) -> None:
        self._list_workers = list_workers
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._asking = asyncio.Lock()  # a worker has one memory for its answer

    def answer(self, order: AskStacks) -> None:
        """Answer this order in a task."""
        start_task(self._read(order), "ask the workers where they are", self._tasks)

    async def close(self) -> None:
        """Answer no more."""
        await cancel_and_wait(self._tasks)

    async def _read(self, order: AskStacks) -> None:
        from hvdrun.agent.stacks import take_stacks  # noqa: PLC0415 - most jobs do without it

        async with self._asking:
            workers = self._list_workers()
            stacks: dict[Worker, Stack] = await in_thread(partial(take_stacks, workers, LIMIT_SECONDS))
            if order.native:
                from hvdrun.agent.native_frames import add_native_frames  # noqa: PLC0415 - only on request

                stacks = await in_thread(partial(add_native_frames, stacks))
        found = [WorkerStack(worker.slot.index, worker.incarnation, stack) for worker, stack in stacks.items()]
        self._tell(Stacks(order.number, encode_stacks(found)))
