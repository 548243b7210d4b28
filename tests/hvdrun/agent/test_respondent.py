"""An agent that serves its workers takes part in surveys beside them, and lets go of each."""

import asyncio
import socket
from collections.abc import Callable, Coroutine

import pytest

from hvdrun.agent.respondent import Respondent
from hvdrun.network.probe import probe
from rendezvous.orders import Found, Listening, Look, Probe, Probed, ProbeTarget, Telling

LIMIT_SECONDS = 20.0
TOKEN = b"t" * 32


def run(scenario: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), LIMIT_SECONDS))


class Told:
    """What is told, one after the other."""

    def __init__(self) -> None:
        self._tellings: asyncio.Queue[Telling] = asyncio.Queue()

    def tell(self, telling: Telling) -> None:
        """It is told."""
        self._tellings.put_nowait(telling)

    async def found(self) -> tuple[Listening, ...]:
        """The next, which is what was found."""
        found = await self._tellings.get()
        assert isinstance(found, Found)
        return found.addresses

    async def probed(self) -> Probed:
        """The next, which is what was proven."""
        probed = await self._tellings.get()
        assert isinstance(probed, Probed)
        return probed


def listens(listening: Listening) -> bool:
    family = socket.AF_INET6 if ":" in listening.endpoint.address else socket.AF_INET
    with socket.socket(family) as probing:
        probing.settimeout(LIMIT_SECONDS)
        return probing.connect_ex((listening.endpoint.address, listening.endpoint.port)) == 0


def test_it_is_reached_and_reaches_others() -> None:
    async def scenario() -> None:
        told, others = Told(), Told()
        respondent, other = Respondent(told.tell, loopback=True), Respondent(others.tell, loopback=True)
        respondent.take(Look(TOKEN, "a"))
        other.take(Look(TOKEN, "b"))
        here, there = await told.found(), await others.found()
        respondent.take(Probe(tuple(ProbeTarget("b", entry.endpoint) for entry in there)))
        assert len((await told.probed()).proofs) == len(there)
        assert len(await probe(TOKEN, [ProbeTarget("a", entry.endpoint) for entry in here])) == len(here)
        await respondent.close()
        await other.close()
        assert not any(map(listens, (*here, *there)))

    run(scenario)


def test_another_survey_ends_the_one_before() -> None:
    async def scenario() -> None:
        told = Told()
        respondent = Respondent(told.tell, loopback=True)
        respondent.take(Look(TOKEN, "a"))
        first = await told.found()
        respondent.take(Look(b"u" * 32, "a"))
        second = await told.found()
        assert not any(map(listens, first))
        assert all(map(listens, second))
        await respondent.close()

    run(scenario)


def test_a_survey_of_which_nothing_more_is_heard_is_over() -> None:
    async def scenario() -> None:
        told = Told()
        respondent = Respondent(told.tell, listen_seconds=0.2, loopback=True)
        respondent.take(Look(TOKEN, "a"))
        addresses = await told.found()
        while any(map(listens, addresses)):  # noqa: ASYNC110 - nothing tells of a listener's end
            await asyncio.sleep(0.01)
        respondent.take(Probe(()))  # too late: nobody waits for the answer
        await respondent.close()

    run(scenario)


@pytest.mark.parametrize("question", [Look(TOKEN, "a"), Probe(())])
def test_one_that_closes_answers_no_more(question: Look | Probe) -> None:
    async def scenario() -> None:
        said: list[Telling] = []
        respondent = Respondent(said.append, loopback=True)
        respondent.take(question)
        await respondent.close()
        await asyncio.sleep(0)
        assert said == []

    run(scenario)
