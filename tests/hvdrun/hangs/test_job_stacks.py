"""A launcher collects where its workers are, and answers `hvdrun stacks` of its user."""

import os
from functools import partial

from hvdrun.hangs.collector import StackCollector
from hvdrun.hangs.job_stacks import JobStacks
from hvdrun.hangs.places import JobPlaces
from hvdrun.jobs.questions import Question, ask, list_jobs
from hvdrun.jobs.record import JobRecord
from hvdrun.processes.background import in_thread
from hvdrun.spec.stacks import Frame, Stack, WorkerStack, encode_stacks
from rendezvous.core.model import Slot, Worker
from rendezvous.wire.hangs import AskStacks, Stacks
from rendezvous.wire.orders import Order
from tests.waiting import in_loop

STACK = Stack(5, (Frame("train.py", 3, "load"),))
ANSWER = encode_stacks([WorkerStack(0, 1, STACK)])
A, B = Worker(Slot("a", 0), 1), Worker(Slot("b", 0), 1)


def make_name() -> str:
    """A job's name that no other test has."""
    return os.urandom(8).hex()


@in_loop
async def test_a_host_that_does_not_answer_is_left_out() -> None:
    def send(host: str, order: Order) -> None:
        assert isinstance(order, AskStacks)
        if host == "a":
            collector.note(host, Stacks(order.number, ANSWER))

    collector = StackCollector(send)
    assert await collector.collect(["a", "b"], 0.01) == {"a": (WorkerStack(0, 1, STACK),)}
    collector.note("b", Stacks(1, ANSWER))  # too late
    assert await collector.collect([]) == {}


def make_job(name: str) -> JobStacks:
    """A job with rank 0 on a host that answers, and rank 1 on one whose agent has not begun."""

    def send(host: str, order: Order) -> None:
        assert isinstance(order, AskStacks)
        job.note(host, Stacks(order.number, ANSWER))

    job = JobStacks(JobRecord(name, ("python", "train.py")), send, lambda: ("a",), lambda: {B: 1, A: 0})
    return job


@in_loop
async def test_a_job_answers_its_user() -> None:
    name = make_name()
    job = make_job(name)
    job.open()
    assert name in list_jobs()
    document = await in_thread(partial(ask, name, Question.STACKS, 10.0))
    record = await in_thread(partial(ask, name, Question.RECORD, 10.0))
    await job.close()
    assert JobRecord.decode(record or "").command == ("python", "train.py")
    assert document is not None
    found = JobPlaces.decode(document)
    assert (found.job, found.pid, found.command) == (name, os.getpid(), "python train.py")
    assert [(each.rank, each.host, str(each.stack)) for each in found.places] == [
        (0, "a", "train.py:3 in load"),
        (1, "b", "the agent of b has not begun"),
    ]
    assert not found.is_complete
    assert name not in list_jobs()


@in_loop
async def test_a_question_asks_for_native_frames() -> None:
    asked = []

    def send(host: str, order: Order) -> None:
        assert isinstance(order, AskStacks)
        asked.append(order.native)
        job.note(host, Stacks(order.number, ANSWER))

    name = make_name()
    job = JobStacks(JobRecord(name, ()), send, lambda: ("a",), lambda: {A: 0})
    job.open()
    for question in (Question.STACKS, Question.NATIVE_STACKS):
        assert await in_thread(partial(ask, name, question, 10.0)) is not None
    await job.close()
    assert asked == [False, True]


@in_loop
async def test_some_ranks_are_found_alone() -> None:
    assert [each.rank for each in await make_job(make_name()).find({1})] == [1]
