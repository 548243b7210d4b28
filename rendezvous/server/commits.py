"""Steps of the core, whose effects wait until the state after the step is durable.

Nobody may learn of a decision that the next server would not know. While one state is written, the steps that follow
accumulate, and the last one's state is written for all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rendezvous.core.messages import Effects, Event
from rendezvous.core.state import State
from rendezvous.journal.persistent import is_quiet


class StateWriter(Protocol):
    """Keeps the state of a job where it outlives the server."""

    def write(self, state: State) -> Awaitable[None]:
        """Write what has changed since the state that was written last; it is durable when this returns.

        Raises:
            Exception: it is not durable, and no later state will be.
        """


@dataclass(frozen=True, slots=True)
class Step:
    """An event, the state that it has led to, and the effects.

    event: None where a former server has left the state.
    """

    event: Event | None
    state: State
    effects: Effects


class Commits:
    """Writes the states of steps, and performs the steps then, in their order.

    Args:
        journal: where they are written.
        perform: is called with steps whose effects may be performed.
        fail: is called with an error of the journal or of `perform`, after which nothing more is performed.
    """

    def __init__(
        self, journal: StateWriter, perform: Callable[[Sequence[Step]], None], fail: Callable[[BaseException], None]
    ) -> None:
        self._journal = journal
        self._perform = perform
        self._fail = fail
        self._steps: list[Step] = []  # that are not being written yet
        self._is_changed = False  # one of them has changed what must be durable
        self._next: asyncio.Future[None] | None = None  # done when they have been performed
        self._present: asyncio.Future[None] | None = None  # done when those that are being written have been
        self._writing: asyncio.Task[None] | None = None

    def add(self, former: State | None, step: Step) -> None:
        """Perform a step as soon as its state is durable.

        Args:
            former: the state before the step; None where that was a former server's.
            step: to perform.
        """
        self._steps.append(step)
        self._is_changed = self._is_changed or former is None or not is_quiet(former, step.state)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="write the state")

    async def settle(self) -> None:
        """Wait until all steps that were added before this call have been performed; for ever after a failure."""
        if (last := self._next or self._present) is not None:
            await asyncio.shield(last)

    async def close(self) -> None:
        """Stop. The steps that are not durable yet are not performed."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait({self._writing})

    async def _write(self) -> None:
        while self._steps:
            steps, self._steps = self._steps, []
            self._present, self._next = self._next, None
            is_changed, self._is_changed = self._is_changed, False
            try:
                if is_changed:
                    await self._journal.write(steps[-1].state)
                self._perform(steps)
            except Exception as error:  # noqa: BLE001 - raised in the owner of the server
                self._fail(error)
                return  # nothing is written after a gap, since this task is not replaced
            if self._present is not None:
                self._present.set_result(None)
                self._present = None
        self._writing = None
