"""An agent that serves its workers takes part in surveys beside them, and lets go of each."""

import asyncio
import socket

import pytest

from hvdrun.agent.respondent import Respondent
from hvdrun.network.probe import probe
from rendezvous.wire.orders import AgentMessage, Found, Listening, Look, Probe, Probed, ProbeTarget
from tests.waiting import happen, in_loop

TOKEN = b"t" * 32


async def find(told: "asyncio.Queue[AgentMessage]") -> tuple[Listening, ...]:
    """The addresses that are told next."""
    found = await told.get()
    assert isinstance(found, Found)
    return found.addresses


def listens(listening: Listening) -> bool:
    family = socket.AF_INET6 if ":" in listening.endpoint.address else socket.AF_INET
    with socket.socket(family) as probing:
        return probing.connect_ex((listening.endpoint.address, listening.endpoint.port)) == 0


@in_loop
async def test_it_is_reached_and_reaches_others() -> None:
    told, others = asyncio.Queue[AgentMessage](), asyncio.Queue[AgentMessage]()
    respondent, other = Respondent(told.put_nowait, loopback=True), Respondent(others.put_nowait, loopback=True)
    respondent.take(Look(TOKEN, "a"))
    other.take(Look(TOKEN, "b"))
    here, there = await find(told), await find(others)
    respondent.take(Probe(tuple(ProbeTarget("b", entry.endpoint) for entry in there)))
    probed = await told.get()
    assert isinstance(probed, Probed)
    assert len(probed.proofs) == len(there)
    assert len(await probe(TOKEN, [ProbeTarget("a", entry.endpoint) for entry in here])) == len(here)
    await respondent.close()
    await other.close()
    assert not any(map(listens, (*here, *there)))


@in_loop
async def test_another_survey_ends_the_one_before() -> None:
    told = asyncio.Queue[AgentMessage]()
    respondent = Respondent(told.put_nowait, loopback=True)
    respondent.take(Look(TOKEN, "a"))
    first = await find(told)
    respondent.take(Look(b"u" * 32, "a"))
    second = await find(told)
    assert not any(map(listens, first))
    assert all(map(listens, second))
    await respondent.close()


@in_loop
async def test_a_survey_of_which_nothing_more_is_heard_is_over() -> None:
    told = asyncio.Queue[AgentMessage]()
    respondent = Respondent(told.put_nowait, listen_seconds=0.2, loopback=True)
    respondent.take(Look(TOKEN, "a"))
    addresses = await find(told)
    await happen(lambda: not any(map(listens, addresses)), "the listener's end")
    respondent.take(Probe(()))  # too late: nobody waits for the answer
    await respondent.close()
    assert told.empty()


@pytest.mark.parametrize("question", [Look(TOKEN, "a"), Probe(())])
@in_loop
async def test_one_that_closes_answers_no_more(question: Look | Probe) -> None:
    said: list[AgentMessage] = []
    respondent = Respondent(said.append, loopback=True)
    respondent.take(question)
    await respondent.close()
    await asyncio.sleep(0)
    assert said == []
