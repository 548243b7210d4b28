"""Whom a guardian counts as its agent's."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hvdrun.agent import processes
from hvdrun.agent.family import Family, is_in_one_of
from tests.hvdrun.agent.jobs import ORIGIN
from tests.hvdrun.agent.sleepers import find, hiding, is_alive, sleeping
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture
def family() -> Family:
    return Family(ORIGIN)


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    with hiding() as (process, _):
        yield process


def pids(found: list[processes.Process]) -> set[int]:
    return {process.pid for process in found}


def test_who_was_seen_below_the_agent_is_a_member_when_the_agent_is_gone(
    family: Family, agent: subprocess.Popen[bytes]
) -> None:
    below = {process.pid for process in processes.descendants(agent.pid)}
    family.head = agent.pid, find(agent.pid).started
    family.look()
    assert family.has_its_head()
    assert not pids(family.find()) & below
    agent.kill()
    agent.wait(LIMIT_SECONDS)
    assert not family.has_its_head()
    family.look()  # nobody is below the dead, and nobody is forgotten for it
    assert pids(family.find()) == below


def test_who_descends_from_a_member_is_one(family: Family, agent: subprocess.Popen[bytes]) -> None:
    below = {process.pid for process in processes.descendants(agent.pid)}
    child = next(process for process in processes.descendants(agent.pid) if process.parent == agent.pid)
    family.sessions[child.pid] = child.started
    assert pids(family.find()) == below


def test_one_who_took_over_the_agent_s_number_is_not_looked_at(family: Family, agent: subprocess.Popen[bytes]) -> None:
    family.head = agent.pid, find(agent.pid).started - 1
    family.look()
    assert not family.has_its_head()
    assert family.find() == []


def test_one_who_took_over_a_member_s_number_is_none(family: Family, agent: subprocess.Popen[bytes]) -> None:
    family.head = agent.pid, find(agent.pid).started
    family.look()
    family._seen = {pid: started - 1 for pid, started in family._seen.items()}
    agent.kill()
    agent.wait(LIMIT_SECONDS)
    assert family.find() == []


def test_who_has_ended_is_forgotten(family: Family, agent: subprocess.Popen[bytes]) -> None:
    family.head = agent.pid, find(agent.pid).started
    family.look()
    below = tuple(processes.descendants(agent.pid))
    for process in below:
        processes.kill(process, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(process.pid) for process in below))
    family.look()
    assert family._seen == {}


def test_the_guardian_is_no_member_though_it_is_below_the_agent(family: Family) -> None:
    family._seen[os.getpid()] = find(os.getpid()).started
    assert os.getpid() not in pids(family.find())


def test_the_oldest_come_first_so_that_no_shell_goes_on_when_its_child_is_killed(family: Family) -> None:
    with ExitStack() as stack:
        shells = [stack.enter_context(sleeping()) for _ in range(5)]
        family.sessions.update({shell.pid: find(shell.pid).started for shell in shells})
        wait_until(lambda: len(family.find()) == 2 * len(shells))  # each has started its sleep
        found = family.find()
    assert [process.started for process in found] == sorted(process.started for process in found)


def test_a_session_outlives_its_leader() -> None:
    with sleeping("sleep 600 &") as leader:
        sessions = {leader.pid: find(leader.pid).started}
        (child, *_) = [process for process in processes.running() if process.session == leader.pid != process.pid]
        leader.kill()
        leader.wait(LIMIT_SECONDS)
        assert is_in_one_of(sessions, child)
        assert not is_in_one_of({}, child)
        assert is_alive(child.pid)
