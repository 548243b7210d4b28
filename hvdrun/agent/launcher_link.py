"""The stream of an agent with a launcher that may be away: orders, and messages until they have been shown."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, NoReturn

from hvdrun.agent.streams import OutputForwarder
from rendezvous.errors import UnreachableError
from rendezvous.wire.orders import Order

if TYPE_CHECKING:
    from rendezvous.client import AgentClient

BEHIND_BYTES = 8 * 1024 * 1024  # that wait for a launcher that answers: the workers wait, too
_PAUSE_SECONDS = 1.0  # between two tries, which a new stream of orders cuts short


class LauncherLink:
    """What travels between an agent and each launcher of its job, beside the reports.

    Args:
        output: keeps the messages, in its spool.
        put: takes each order.
        greet: is called each time when a launcher has answered: some things it must be told again.
    """

    def __init__(self, output: OutputForwarder, put: Callable[[Order], None], greet: Callable[[], None]) -> None:
        self._output = output
        self._put = put
        self._greet = greet
        self._has_answered = asyncio.Event()

    async def obey(self, client: "AgentClient") -> None:
        """Take orders, until cancelled.

        Raises:
            CallRefusedError: another agent has replaced this one.
            WireError: an order is malformed.
        """
        async with aclosing(client.obey(self._note_open)) as orders:
            async for order in orders:
                self._put(order)

    async def deliver(self, client: "AgentClient") -> NoReturn:
        """Deliver messages, until cancelled.

        Raises:
            CallRefusedError: another agent has replaced this one, or the launcher cannot read a message.
        """
        output = self._output
        while output.spool is not None:
            output.spooled.clear()
            if not output.spool and not output.is_ending:
                await output.spooled.wait()
                continue
            first, messages = output.spool.peek()
            is_last = output.is_ending and first + len(messages) == output.spool.next_number
            try:
                output.spool.drop(await client.deliver(first, messages, is_last=is_last))
                output.hold(is_held=output.spool.size > BEHIND_BYTES)
            except UnreachableError:
                output.hold(is_held=False)
                self._has_answered.clear()
                with suppress(TimeoutError):  # then another try
                    async with asyncio.timeout(_PAUSE_SECONDS):  # wait_for would swallow a cancellation at an answer
                        await self._has_answered.wait()
                continue
            if is_last and not output.spool:
                output.delivered.set()
                break
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    def _note_open(self) -> None:
        self._has_answered.set()
        self._output.stream()
        self._greet()
