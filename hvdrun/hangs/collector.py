"""Asks the agents of a job where their workers are."""

import asyncio
from collections.abc import Callable, Collection
from itertools import count

from hvdrun.spec.stacks import WorkerStack, decode_stacks
from rendezvous.wire.hangs import AskStacks, Stacks
from rendezvous.wire.orders import Order

ANSWER_SECONDS = 1.7  # an agent gives its workers a second; hvdrun stacks promises 2 s for all
NATIVE_SECONDS = 30.0  # py-spy takes tenths of a second for each worker, on a busy host seconds


class StackCollector:
    """Asks several hosts at the same time; belongs to one event loop.

    Args:
        send: sends an order to a host's agent.
    """

    def __init__(self, send: Callable[[str, Order], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._answers: dict[tuple[int, str], asyncio.Future[tuple[WorkerStack, ...]]] = {}

    async def collect(
        self, hosts: Collection[str], limit_seconds: float = ANSWER_SECONDS, *, is_native: bool = False
    ) -> dict[str, tuple[WorkerStack, ...]]:
        """Where the workers of each host are; without the hosts that have not answered in time.

        is_native: with frames of C and C++.
        """
        number, loop = next(self._numbers), asyncio.get_running_loop()
        waiting = {host: loop.create_future() for host in hosts}
        self._answers |= {(number, host): future for host, future in waiting.items()}
        try:
            for host in hosts:
                self._send(host, AskStacks(number, is_native))
            if waiting:
                await asyncio.wait(waiting.values(), timeout=limit_seconds)
        finally:
            for host in hosts:
                del self._answers[number, host]
        return {host: future.result() for host, future in waiting.items() if future.done()}

    def note(self, host: str, message: Stacks) -> None:
        """Take the answer of a host; one that comes too late is dropped."""
        future = self._answers.get((message.number, host))
        if future is not None and not future.done():
            future.set_result(decode_stacks(message.stacks))
