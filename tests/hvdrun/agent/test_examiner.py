"""An agent answers what is asked about its host, also where that fails."""

import asyncio

import pytest

from hvdrun.agent import examination
from hvdrun.agent.examiner import Examiner
from hvdrun.spec.facts import Facts
from rendezvous.wire.orders import AgentMessage, Examine, Examined
from tests.waiting import in_loop


async def ask(order: Examine) -> Facts:
    """The facts that follow this order."""
    answers: asyncio.Queue[AgentMessage] = asyncio.Queue()
    examiner = Examiner(answers.put_nowait)
    examiner.answer(order)
    answer = await answers.get()
    await examiner.close()
    assert isinstance(answer, Examined)
    return Facts.decode(answer.facts)


@in_loop
async def test_the_answer_has_the_facts() -> None:
    facts = await ask(Examine("/", is_short=True))
    assert facts.memory > 0
    assert facts.failure == ""


@in_loop
async def test_a_host_that_cannot_be_examined_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Facts:
        raise PermissionError("/proc is closed")

    monkeypatch.setattr(examination, "examine", fail)
    assert (await ask(Examine("/"))).failure == "PermissionError: /proc is closed"
