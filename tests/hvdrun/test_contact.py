"""One agent as its launcher has it, while it starts and when it is given up; all else is shown by the fleet's tests."""

import asyncio

import pytest

from hvdrun.contact import Contact
from hvdrun.errors import HostLostEarlyError
from tests.hvdrun.played_agent import PlayedAgent, ignore
from tests.waiting import in_loop


@in_loop
async def test_an_agent_that_is_given_up_keeps_nobody_waiting_for_an_answer() -> None:
    agent = PlayedAgent(obeys=False)
    contact = Contact("a", agent, ignore, lambda *_: pytest.fail("it counts as lost"))
    await contact.open()
    hearing = asyncio.create_task(contact.hear())
    await asyncio.sleep(0)
    contact.abandon()
    contact.abandon()
    with pytest.raises(HostLostEarlyError, match="given up"):
        await hearing
    await contact.close()
    assert agent.story == ["opened", "abandoned", "closed"]


@in_loop
async def test_closing_an_agent_that_is_being_started_calls_that_off_first() -> None:
    agent = PlayedAgent(starts=False)
    contact = Contact("a", agent, ignore, lambda *_: pytest.fail("it counts as lost"))
    opening = asyncio.create_task(contact.open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await contact.close()
    assert agent.story == ["called off", "closed"]
    await asyncio.wait({opening})
    assert opening.cancelled()
