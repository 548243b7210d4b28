"""The guardian ends what an agent leaves behind and nothing else; whom it counts as its agent's; the agent's side."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hvdrun.processes import processes
from hvdrun.processes.family import Family, is_in_one_of
from hvdrun.processes.guard import Guard
from hvdrun.processes.guardian import Vigil
from tests.hvdrun.agent.jobs import JOB, ORIGIN
from tests.hvdrun.agent.sleepers import find, hiding, is_alive, sleeping
from tests.waiting import LIMIT_SECONDS, happen, in_loop, wait_until

OURS = {"HVD_JOB": JOB, "HVD_SLOT": "a:0", "HVD_INCARNATION": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "hvdrun-folder"
    path.mkdir()
    (path / "agent.sock").touch()
    return path


@pytest.fixture
def guardian(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "hvdrun.processes.guardian", ORIGIN, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process


def tell(guardian: subprocess.Popen[str], *lines: str) -> int:
    """Say these lines, and nothing more; how the guardian ends."""
    guardian.communicate("".join(f"{line}\n" for line in lines), timeout=LIMIT_SECONDS)
    return guardian.returncode


def test_at_the_end_of_its_pipe_it_ends_sessions_and_the_folder(guardian: subprocess.Popen[str], folder: Path) -> None:
    with sleeping("trap '' TERM; sleep 600 & echo $!") as worker:
        told = f"session {worker.pid} {find(worker.pid).started}"
        assert tell(guardian, told) == 0
        assert worker.wait(LIMIT_SECONDS) == -9
        assert [process for process in processes.running() if process.session == worker.pid] == []
    assert not folder.exists()


def test_it_finds_what_was_started_by_the_agent_s_workers_wherever_it_went(guardian: subprocess.Popen[str]) -> None:
    inner = {**OURS, "HVD_JOB": f"{ORIGIN}/0.1/inner", "HVD_SLOT": "b:0"}
    with sleeping(environment=OURS) as stray, sleeping(environment=inner) as inner_worker:
        assert tell(guardian) == 0
        assert (stray.wait(LIMIT_SECONDS), inner_worker.wait(LIMIT_SECONDS)) == (-9, -9)


def test_a_session_whose_leader_is_another_is_left_alone(guardian: subprocess.Popen[str]) -> None:
    with sleeping("sleep 600 & echo $!") as stranger:
        assert tell(guardian, f"session {stranger.pid} {find(stranger.pid).started - 1}") == 0
        assert len([process for process in processes.running() if process.session == stranger.pid]) == 3


def test_words_that_it_does_not_know_are_nothing_to_it(guardian: subprocess.Popen[str], folder: Path) -> None:
    assert tell(guardian, "", "session", "what now", "end 4711") == 0
    assert not folder.exists()


def test_an_agent_that_lives_has_only_let_its_guardian_go(guardian: subprocess.Popen[str]) -> None:
    with hiding() as (agent, hidden), sleeping(environment=OURS) as worker:
        assert tell(guardian, f"agent {agent.pid} {find(agent.pid).started}") == 0
        assert worker.wait(LIMIT_SECONDS) == -9
        assert is_alive(hidden[0].pid)


@pytest.fixture
def guard(folder: Path) -> Iterator[Guard]:
    guard = Guard(ORIGIN, folder)
    yield guard
    guardian = guard._process
    guard.dismiss()
    if guardian is not None:
        os.waitpid(guardian.pid, 0)


def find_guardian(guard: Guard) -> int:
    """Its pid; also a check that it runs."""
    assert guard._process is not None
    pid = guard._process.pid
    assert guard.owns(pid)
    assert is_alive(pid)
    return pid


def kill_guardian(guard: Guard) -> int:
    """End and reap it, as the agent would find it."""
    pid = find_guardian(guard)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def die(guard: Guard) -> int:
    """Let the guardian see what an agent's death looks like; how it ends."""
    pid = find_guardian(guard)
    guard._forget()
    return os.waitpid(pid, 0)[1]


def test_a_killed_guardian_is_replaced_by_one_that_knows_as_much(guard: Guard, folder: Path) -> None:
    with sleeping() as before, sleeping() as between, sleeping() as after, sleeping() as one, sleeping() as other:
        guard.add(before.pid)
        guard.add(one.pid)
        first = kill_guardian(guard)
        guard.add(between.pid)  # nobody hears it
        guard.remove(one.pid)
        guard.replace()
        guard.add(after.pid)
        guard.add(other.pid)
        guard.remove(other.pid)
        assert find_guardian(guard) != first
        assert not guard.owns(first)
        assert die(guard) == 0
        assert [process.wait(LIMIT_SECONDS) for process in (before, between, after)] == [-signal.SIGKILL] * 3
        assert is_alive(one.pid)
        assert is_alive(other.pid)
    assert not folder.exists()


def test_a_dismissed_guardian_goes_and_touches_nothing(folder: Path) -> None:
    guard = Guard(ORIGIN, folder)
    with sleeping() as worker:
        guard.add(worker.pid)
        pid = find_guardian(guard)
        guard.dismiss()
        assert os.waitpid(pid, 0)[1] == 0
        assert is_alive(worker.pid)
    assert folder.exists()


def test_a_guardian_that_dies_again_and_again_is_given_up_which_is_said(guard: Guard) -> None:
    said: list[str] = []
    guard._warn = said.append
    guard._starts_left = 2
    for _ in range(2):
        kill_guardian(guard)
        guard.replace()
    last = kill_guardian(guard)
    guard.replace()
    assert not guard.owns(last)
    assert said == ["no guardian ends what is left here, should the agent be killed: 10 were killed"]
    with sleeping() as worker:
        guard.add(worker.pid)
        guard.remove(worker.pid)


@in_loop
async def test_a_guardian_that_is_stopped_holds_nobody_up_and_hears_all_when_it_goes_on(folder: Path) -> None:
    guard = Guard(ORIGIN, folder)
    pid = find_guardian(guard)
    os.kill(pid, signal.SIGSTOP)
    with sleeping() as worker:
        for number in range(10_000):  # more than a pipe holds
            guard.remove(2**22 + number)
        guard.add(worker.pid)
        os.kill(pid, signal.SIGCONT)
        await happen(lambda: guard._unread == b"")
        assert await asyncio.to_thread(die, guard) == 0
        assert worker.wait(LIMIT_SECONDS) == -signal.SIGKILL


def test_a_guardian_leads_a_session_and_holds_no_folder(guard: Guard) -> None:
    process = find(find_guardian(guard))
    assert process.session == process.pid
    wait_until(lambda: os.readlink(f"/proc/{process.pid}/cwd") == "/")  # noqa: PTH115 - as short as it gets


@pytest.fixture
def family() -> Family:
    return Family(ORIGIN)


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    with hiding() as (process, _):
        yield process


def pids(found: list[processes.Process]) -> set[int]:
    return {process.pid for process in found}


def test_who_was_seen_below_the_agent_is_a_member_after_its_end(family: Family, agent: subprocess.Popen[bytes]) -> None:
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


def test_looks_cost_a_hundredth_of_the_time(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 3.0])  # the first look takes two seconds
    monkeypatch.setattr(family, "look", lambda: None)
    assert Vigil(family, lambda: next(times)).look() == 198.0


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
