"""One agent as its launcher has it: what is told of its end, and to whom; all else is shown by the fleet's tests."""

import asyncio
from collections.abc import Callable

import pytest

from hvdrun.contact import Contact
from hvdrun.errors import HostLostEarlyError
from rendezvous.orders import Release
from tests.hvdrun.played_agent import PlayedAgent, ignore
from tests.waiting import in_loop


class Room:
    """A contact with an agent that starts when the test lets it, and ends when the test says so."""

    def __init__(self) -> None:
        self.agent = PlayedAgent(starts=False, obeys=False)
        self.lost: list[str] = []
        self.contact = Contact("a", self.agent, ignore, lambda contact, how: self.lost.append(f"{contact.host} {how}"))

    async def open(self) -> None:
        """Have the agent started."""
        self.agent.may_start.set()
        await self.contact.open()

    async def listen_to_the_end(self) -> None:
        """All that it tells has come."""
        listening = self.contact.listening
        assert listening is not None
        await asyncio.wait({listening})


@in_loop
async def test_an_end_that_nobody_wanted_is_told_and_whoever_waits_for_an_answer_hears_of_it() -> None:
    room = Room()
    await room.open()
    room.agent.end()
    await room.listen_to_the_end()
    assert room.lost == ["a its agent ended"]
    for _ in range(2):
        with pytest.raises(HostLostEarlyError, match="its agent ended"):
            await room.contact.hear()
    await room.contact.close()


@pytest.mark.parametrize("let_go", [Contact.release, Contact.abandon])
@in_loop
async def test_the_end_of_one_that_was_let_go_is_no_loss(let_go: Callable[[Contact], None]) -> None:
    room = Room()
    await room.open()
    let_go(room.contact)
    room.agent.end()
    await room.listen_to_the_end()
    assert room.lost == []
    await room.contact.close()


@in_loop
async def test_one_that_is_given_up_keeps_nobody_waiting_for_an_answer() -> None:
    room = Room()
    await room.open()
    hearing = asyncio.create_task(room.contact.hear())
    await asyncio.sleep(0)
    room.contact.abandon()
    room.contact.abandon()
    with pytest.raises(HostLostEarlyError, match="given up"):
        await hearing
    await room.contact.close()
    assert room.agent.story == ["opened", "abandoned", "closed"]


@in_loop
async def test_closing_one_that_is_just_being_started_calls_that_off_first() -> None:
    room = Room()
    opening = asyncio.create_task(room.contact.open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await room.contact.close()
    assert room.agent.story == ["called off", "closed"]
    await asyncio.wait({opening})
    assert opening.cancelled()


@in_loop
async def test_a_release_is_an_order() -> None:
    room = Room()
    await room.open()
    room.contact.release()
    assert room.agent.orders == [Release()]
    await room.contact.close()
