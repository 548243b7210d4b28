"""Answers what `hvdrun doctor`, or the start of a job, asks about this host, beside all else that the agent does."""

import asyncio
from collections.abc import Callable
from functools import partial

from hvdrun.processes.background import cancel_and_wait, in_thread, start_task
from hvdrun.spec.facts import Facts
from rendezvous.wire.orders import AgentMessage, Examine, Examined


class Examiner:
    """Examines this host; belongs to one event loop.

    Args:
        tell: sends an answer.
    """

    def __init__(self, tell: Callable[[AgentMessage], None]) -> None:
        self._tell = tell
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(self, order: Examine) -> None:
        """Answer this order in a task."""
        start_task(self._examine(order), "examine this host", self._tasks)

    async def close(self) -> None:
        """Answer no more."""
        await cancel_and_wait(self._tasks)

    async def _examine(self, order: Examine) -> None:
        from hvdrun.agent.examination import examine  # noqa: PLC0415 - a job on one host does without it

        try:
            facts = await in_thread(partial(examine, order.directory, cleans=order.cleans, is_short=order.is_short))
        except Exception as error:  # noqa: BLE001 - reported; a job can do without what is not known
            facts = Facts(failure=f"{type(error).__name__}: {error}")
        self._tell(Examined(facts.encode()))
