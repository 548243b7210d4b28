"""An agent that serves its workers takes part in connectivity checks meanwhile, and closes the listeners of each."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from hvdrun.agent.probe_responder import ProbeResponder
from hvdrun.network import connectivity
from hvdrun.network.probe import probe
from hvdrun.processes.background import report_callback_errors
from rendezvous.wire.orders import (
    Addresses,
    AgentMessage,
    ListAddresses,
    Listening,
    ProbePeers,
    ProbeResults,
    ProbeTarget,
)
from tests.hvdrun.network.loopback import loopback_listed
from tests.waiting import happen, in_loop

TOKEN = b"t" * 32


@pytest.fixture(autouse=True)
def _on_loopback() -> Iterator[None]:
    with loopback_listed():
        yield


async def find(reported: "asyncio.Queue[AgentMessage]") -> tuple[Listening, ...]:
    """The addresses that are reported next."""
    found = await reported.get()
    assert isinstance(found, Addresses)
    return found.addresses


def listens(listening: Listening) -> bool:
    family = socket.AF_INET6 if ":" in listening.endpoint.address else socket.AF_INET
    with socket.socket(family) as probing:
        return probing.connect_ex((listening.endpoint.address, listening.endpoint.port)) == 0


@in_loop
async def test_hosts_in_use_probe_each_other() -> None:
    reported, others = asyncio.Queue[AgentMessage](), asyncio.Queue[AgentMessage]()
    responder = ProbeResponder(reported.put_nowait)
    other = ProbeResponder(others.put_nowait)
    responder.answer(ListAddresses(TOKEN, "a"))
    other.answer(ListAddresses(TOKEN, "b"))
    here, there = await find(reported), await find(others)
    responder.answer(ProbePeers(tuple(ProbeTarget("b", entry.endpoint) for entry in there)))
    probed = await reported.get()
    assert isinstance(probed, ProbeResults)
    assert len(probed.proofs) == len(there)
    assert len(await probe(TOKEN, [ProbeTarget("a", entry.endpoint) for entry in here])) == len(here)
    await responder.close()
    await other.close()
    await happen(lambda: not any(map(listens, (*here, *there))), "the close of all listeners")


@in_loop
async def test_another_check_closes_the_listeners_of_the_one_before() -> None:
    reported = asyncio.Queue[AgentMessage]()
    responder = ProbeResponder(reported.put_nowait)
    responder.answer(ListAddresses(TOKEN, "a"))
    first = await find(reported)
    responder.answer(ListAddresses(b"u" * 32, "a"))
    second = await find(reported)
    await happen(lambda: not any(map(listens, first)), "the close of the first listeners")
    assert all(map(listens, second))
    await responder.close()


@in_loop
async def test_a_check_without_further_questions_is_over() -> None:
    reported = asyncio.Queue[AgentMessage]()
    responder = ProbeResponder(reported.put_nowait, listen_seconds=0.2)
    responder.answer(ListAddresses(TOKEN, "a"))
    addresses = await find(reported)
    await happen(lambda: not any(map(listens, addresses)), "the listener's end")
    await responder.answer(ProbePeers(()))  # too late: it gets no answer
    await responder.close()
    assert reported.empty()


@pytest.mark.parametrize("question", [ListAddresses(TOKEN, "a"), ProbePeers(())])
@in_loop
async def test_a_closed_responder_sends_no_answer(question: ListAddresses | ProbePeers) -> None:
    said: list[AgentMessage] = []
    responder = ProbeResponder(said.append)
    responder.answer(question)
    await responder.close()
    await asyncio.sleep(0)
    assert said == []


@in_loop
async def test_an_unexpected_error_ends_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(connectivity, "list_addresses", fail)
    failures: list[BaseException] = []
    report_callback_errors(failures.append)
    responder = ProbeResponder(lambda _: None)
    responder.answer(ListAddresses(TOKEN, "a"))
    await happen(lambda: bool(failures), "the failure")
    await responder.close()
    assert str(failures[0]) == "a defect"
