"""Jobs of this machine are found by their sockets, and answer their user alone."""

import asyncio
import os
import socket
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from hvdrun.jobs import questions
from hvdrun.jobs.questions import Question, QuestionServer, SilentJobError, ask, find_launcher, list_jobs
from hvdrun.processes.background import in_thread
from tests.waiting import in_loop


def make_name() -> str:
    """A job's name that no other test has."""
    return os.urandom(8).hex()


async def answer() -> str:
    await asyncio.sleep(0)
    return "{}"


@in_loop
async def test_each_question_has_an_answer_of_its_own() -> None:
    name = make_name()
    server = QuestionServer(name, {Question.RECORD: answer})
    server.open()
    assert name in list_jobs()
    assert find_launcher(name) == os.getpid()
    assert await in_thread(partial(ask, name, Question.RECORD, 10.0)) == "{}"
    assert await in_thread(partial(ask, name, Question.STACKS, 10.0)) is None
    await server.close()
    assert find_launcher(name) is None


@in_loop
async def test_another_user_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    name = make_name()
    server = QuestionServer(name, {Question.RECORD: answer})
    server.open()
    monkeypatch.setattr(questions, "_read_peer", lambda _: (1, 4321))
    assert await in_thread(partial(ask, name, Question.RECORD, 10.0)) is None  # each side refuses the other
    await server.close()


def test_a_job_that_does_not_answer_is_named() -> None:
    name = make_name()
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(f"\0hvdrun-job/{os.geteuid()}/{name}")
        stopped.listen()
        with pytest.raises(SilentJobError) as caught:
            ask(name, Question.RECORD, 0.01)
    assert caught.value.pid == os.getpid()
    assert ask(name, Question.RECORD, 0.01) is None  # it has ended


def test_a_suspended_job_whose_queue_is_full_is_not_waited_for_and_counts_as_silent() -> None:
    name = make_name()
    with socket.socket(socket.AF_UNIX) as stopped, ExitStack() as callers:
        stopped.bind(f"\0hvdrun-job/{os.geteuid()}/{name}")
        stopped.listen(0)
        with suppress(BlockingIOError):
            while True:
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.settimeout(0)
                caller.connect(stopped.getsockname())
        assert find_launcher(name) is None
        with pytest.raises(SilentJobError):
            ask(name, Question.RECORD, 0.01)


@in_loop
async def test_a_second_server_of_a_name_does_without() -> None:
    name = make_name()
    servers = [QuestionServer(name, {Question.RECORD: answer}) for _ in range(2)]
    for server in servers:
        server.open()
    for server in servers:
        await server.close()
