"""Whom a guardian counts as its agent's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hvdrun.agent import processes
from hvdrun.agent.family import Family, is_in_one_of
from tests.hvdrun.agent.jobs import ORIGIN
from tests.hvdrun.agent.sleepers import is_alive, sleeping, wait_until


def start_time(pid: int) -> int:
    process = processes.look(pid)
    assert process is not None
    return process.started


@pytest.fixture
def family() -> Family:
    return Family(ORIGIN)


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child that leads a session and has no environment, and that child's child."""
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    os.execve('/bin/sh', ['sh', '-c', 'sleep 600; true'], {})\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        wait_until(lambda: len(list(processes.descendants(process.pid))) == 2)
        hidden = list(processes.descendants(process.pid))
        try:
            yield process
        finally:
            process.kill()
            for child in hidden:
                processes.kill(child, signal.SIGKILL)


def pids(found: list[processes.Process]) -> set[int]:
    return {process.pid for process in found}


def test_who_was_seen_below_the_agent_is_a_member_when_the_agent_is_gone(
    family: Family, agent: subprocess.Popen[bytes]
) -> None:
    below = {process.pid for process in processes.descendants(agent.pid)}
    family.head = agent.pid, start_time(agent.pid)
    family.look()
    assert family.has_its_head()
    assert not pids(family.find()) & below
    agent.kill()
    agent.wait(10)
    assert not family.has_its_head()
    family.look()  # nobody is below the dead, and nobody is forgotten for it
    assert pids(family.find()) == below


def test_who_descends_from_a_member_is_one(family: Family, agent: subprocess.Popen[bytes]) -> None:
    below = {process.pid for process in processes.descendants(agent.pid)}
    child = next(process for process in processes.descendants(agent.pid) if process.parent == agent.pid)
    family.sessions[child.pid] = child.started
    assert pids(family.find()) == below


def test_one_who_took_over_the_agent_s_number_is_not_looked_at(family: Family, agent: subprocess.Popen[bytes]) -> None:
    family.head = agent.pid, start_time(agent.pid) - 1
    family.look()
    assert not family.has_its_head()
    assert family.find() == []


def test_one_who_took_over_a_member_s_number_is_none(family: Family, agent: subprocess.Popen[bytes]) -> None:
    family.head = agent.pid, start_time(agent.pid)
    family.look()
    family._seen = {pid: started - 1 for pid, started in family._seen.items()}
    agent.kill()
    agent.wait(10)
    assert family.find() == []


def test_who_has_ended_is_forgotten(family: Family, agent: subprocess.Popen[bytes]) -> None:
    family.head = agent.pid, start_time(agent.pid)
    family.look()
    below = tuple(processes.descendants(agent.pid))
    for process in below:
        processes.kill(process, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(process.pid) for process in below))
    family.look()
    assert family._seen == {}


def test_the_guardian_is_no_member_though_it_is_below_the_agent(family: Family) -> None:
    family._seen[os.getpid()] = start_time(os.getpid())
    assert os.getpid() not in pids(family.find())


def test_the_oldest_come_first_so_that_no_shell_goes_on_when_its_child_is_killed(family: Family) -> None:
    with ExitStack() as stack:
        shells = [stack.enter_context(sleeping()) for _ in range(5)]
        family.sessions.update({shell.pid: start_time(shell.pid) for shell in shells})
        wait_until(lambda: len(family.find()) == 2 * len(shells))  # each has started its sleep
        found = family.find()
    assert [process.started for process in found] == sorted(process.started for process in found)


def test_a_session_outlives_its_leader() -> None:
    with sleeping("sleep 600 &") as leader:
        sessions = {leader.pid: start_time(leader.pid)}
        (child, *_) = [process for process in processes.running() if process.session == leader.pid != process.pid]
        leader.kill()
        leader.wait(10)
        assert is_in_one_of(sessions, child)
        assert not is_in_one_of({}, child)
        assert is_alive(child.pid)
