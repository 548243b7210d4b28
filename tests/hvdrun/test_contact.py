"""One agent as its launcher has it: what is told of its end, and to whom; all else is shown by the fleet's tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest

from hvdrun.contact import Contact
from hvdrun.errors import HostLostEarlyError
from rendezvous.orders import Order, Release, Telling

LIMIT_SECONDS = 10.0


class Transport:
    """A transport whose agent starts, and ends, when the test says so."""

    def __init__(self) -> None:
        self.may_start = asyncio.Event()
        self.orders: list[Order] = []
        self.story: list[str] = []
        self._told: asyncio.Queue[Telling | None] = asyncio.Queue()

    async def open(self) -> None:
        """See `Transport`."""
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            self.story.append("called off")
            raise
        self.story.append("open")

    def send(self, order: Order) -> None:
        """See `Transport`."""
        self.orders.append(order)

    async def tellings(self) -> AsyncIterator[Telling]:
        """See `Transport`."""
        while (telling := await self._told.get()) is not None:
            yield telling

    def end(self) -> None:
        """The agent ends."""
        self._told.put_nowait(None)

    async def wait(self) -> str:
        """See `Transport`."""
        return "it ended"

    async def tunnel(self, port: int) -> int:
        """See `Transport`."""
        return port

    async def abandon(self) -> None:
        """See `Transport`."""
        self.story.append("abandoned")

    async def close(self) -> None:
        """See `Transport`."""
        self.story.append("closed")


class Room:
    """A contact over such a transport."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.lost: list[str] = []
        self.contact = Contact(
            "a", self.transport, self._show, lambda contact, how: self.lost.append(f"{contact.host} {how}")
        )

    async def open(self) -> None:
        """Have the agent started."""
        self.transport.may_start.set()
        await self.contact.open()

    async def listen_to_the_end(self) -> None:
        """All that it tells has come."""
        listening = self.contact.listening
        assert listening is not None
        await asyncio.wait({listening})

    async def _show(self, _: Telling) -> None: ...


def run(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


def test_an_end_that_nobody_wanted_is_told_and_whoever_waits_for_an_answer_hears_of_it() -> None:
    async def scenario() -> None:
        room = Room()
        await room.open()
        room.transport.end()
        await room.listen_to_the_end()
        assert room.lost == ["a it ended"]
        for _ in range(2):
            with pytest.raises(HostLostEarlyError, match="it ended"):
                await room.contact.hear()
        await room.contact.close()

    run(scenario)


@pytest.mark.parametrize("let_go", [Contact.release, Contact.abandon])
def test_the_end_of_one_that_was_let_go_is_no_loss(let_go: Callable[[Contact], None]) -> None:
    async def scenario() -> None:
        room = Room()
        await room.open()
        let_go(room.contact)
        room.transport.end()
        await room.listen_to_the_end()
        assert room.lost == []
        await room.contact.close()

    run(scenario)


def test_one_that_is_given_up_keeps_nobody_waiting_for_an_answer() -> None:
    async def scenario() -> None:
        room = Room()
        await room.open()
        hearing = asyncio.create_task(room.contact.hear())
        await asyncio.sleep(0)
        room.contact.abandon()
        room.contact.abandon()
        with pytest.raises(HostLostEarlyError, match="given up"):
            await hearing
        await room.contact.close()
        assert room.transport.story == ["open", "abandoned", "closed"]

    run(scenario)


def test_closing_one_that_is_just_being_started_calls_that_off_first() -> None:
    async def scenario() -> None:
        room = Room()
        opening = asyncio.create_task(room.contact.open())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await room.contact.close()
        assert room.transport.story == ["called off", "closed"]
        await asyncio.wait({opening})
        assert opening.cancelled()

    run(scenario)


def test_a_release_is_an_order() -> None:
    async def scenario() -> None:
        room = Room()
        await room.open()
        room.contact.release()
        assert room.transport.orders == [Release()]
        await room.contact.close()

    run(scenario)
