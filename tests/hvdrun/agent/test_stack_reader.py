"""An agent answers where its workers are."""

import asyncio
import os

from hvdrun.agent.stack_reader import StackReader
from hvdrun.spec.stacks import decode_stacks
from rendezvous.core.model import Slot, Worker
from rendezvous.wire.hangs import AskStacks, Stacks
from rendezvous.wire.orders import AgentMessage
from tests.waiting import in_loop


@in_loop
async def test_the_answer_names_each_worker_and_the_question() -> None:
    answers: asyncio.Queue[AgentMessage] = asyncio.Queue()
    workers = {Worker(Slot("a", 3), 2): os.getpid()}  # this process registers no stack handler
    reader = StackReader(lambda: workers, answers.put_nowait)
    reader.answer(AskStacks(7))
    answer = await answers.get()
    await reader.close()
    assert isinstance(answer, Stacks)
    (found,) = decode_stacks(answer.stacks)
    assert (answer.number, found.slot, found.incarnation, found.stack.pid) == (7, 3, 2, os.getpid())
    assert "has not run hvdrun's start" in found.stack.obstacle
