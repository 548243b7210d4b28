"""The watchdog ends what an agent leaves behind and nothing else; whom it counts as its agent's; its client."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hvdrun.processes import processes
from hvdrun.processes.watchdog import Watchdog
from hvdrun.processes.watchdog_process import ProcessTree, WatchLoop, is_in_one_of
from tests.hvdrun.agent.jobs import JOB, ORIGIN
from tests.hvdrun.agent.sleepers import find, hiding, is_alive, sleeping
from tests.waiting import LIMIT_SECONDS, wait_until

OURS = {"HVD_JOB": JOB, "HVD_SLOT": "a:0", "HVD_INCARNATION": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "hvdrun-folder"
    path.mkdir()
    (path / "agent.sock").touch()
    return path


@pytest.fixture
def program(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "hvdrun.processes.watchdog_process", ORIGIN, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process


def feed(program: subprocess.Popen[str], *lines: str) -> int:
    """Say these lines, and nothing more; how the watchdog ends."""
    program.communicate("".join(f"{line}\n" for line in lines), timeout=LIMIT_SECONDS)
    return program.returncode


def test_at_the_end_of_its_pipe_the_watchdog_kills_sessions_and_removes_the_folder(
    program: subprocess.Popen[str], folder: Path
) -> None:
    with sleeping("trap '' TERM; sleep 600 & echo $!") as worker:
        line = f"session {worker.pid} {find(worker.pid).started}"
        assert feed(program, line) == 0
        assert worker.wait(LIMIT_SECONDS) == -9
        assert [process for process in processes.running() if process.session == worker.pid] == []
    assert not folder.exists()


def test_the_watchdog_finds_processes_of_the_workers_in_other_sessions(program: subprocess.Popen[str]) -> None:
    inner = {**OURS, "HVD_JOB": f"{ORIGIN}/0.1/inner", "HVD_SLOT": "b:0"}
    with sleeping(environment=OURS) as stray, sleeping(environment=inner) as inner_worker:
        assert feed(program) == 0
        assert (stray.wait(LIMIT_SECONDS), inner_worker.wait(LIMIT_SECONDS)) == (-9, -9)


def test_a_session_whose_leader_is_another_is_left_alone(program: subprocess.Popen[str]) -> None:
    with sleeping("sleep 600 & echo $!") as stranger:

        def is_whole() -> bool:
            return len([process for process in processes.running() if process.session == stranger.pid]) == 3

        wait_until(is_whole)
        assert feed(program, f"session {stranger.pid} {find(stranger.pid).started - 1}") == 0
        assert is_whole()


def test_the_watchdog_ignores_unknown_lines(program: subprocess.Popen[str], folder: Path) -> None:
    assert feed(program, "", "session", "what now", "end 4711") == 0
    assert not folder.exists()


def test_the_watchdog_of_a_live_agent_kills_only_processes_with_its_origin(program: subprocess.Popen[str]) -> None:
    with hiding() as (agent, hidden), sleeping(environment=OURS) as worker:
        assert feed(program, f"agent {agent.pid} {find(agent.pid).started}") == 0
        assert worker.wait(LIMIT_SECONDS) == -9
        assert is_alive(hidden[0].pid)


@pytest.fixture
def client(folder: Path) -> Iterator[Watchdog]:
    client = Watchdog(ORIGIN, [folder])
    client.start()
    yield client
    client.end()


def find_watchdog(client: Watchdog) -> int:
    """The watchdog's pid; also a check that the watchdog runs."""
    assert client._process is not None
    pid = client._process.pid
    assert client.owns(pid)
    assert is_alive(pid)
    return pid


def kill_watchdog(client: Watchdog) -> int:
    """End and reap it, as the agent would find it."""
    pid = find_watchdog(client)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def die(client: Watchdog) -> int:
    """Let the watchdog see what an agent's death looks like; how it ends."""
    pid = find_watchdog(client)
    client._forget()
    return os.waitpid(pid, 0)[1]


def test_a_killed_watchdog_is_replaced_by_one_that_knows_as_much(client: Watchdog, folder: Path) -> None:
    with sleeping() as before, sleeping() as between, sleeping() as after, sleeping() as one, sleeping() as other:
        client.add(before.pid)
        client.add(one.pid)
        first = kill_watchdog(client)
        client.add(between.pid)  # no watchdog receives this
        client.remove(one.pid)
        client.replace()
        client.add(after.pid)
        client.add(other.pid)
        client.remove(other.pid)
        assert find_watchdog(client) != first
        assert not client.owns(first)
        assert die(client) == 0
        assert [process.wait(LIMIT_SECONDS) for process in (before, between, after)] == [-signal.SIGKILL] * 3
        assert is_alive(one.pid)
        assert is_alive(other.pid)
    assert not folder.exists()


def test_a_watchdog_that_is_ended_is_gone_and_touches_nothing(folder: Path) -> None:
    client = Watchdog(ORIGIN, [folder])
    client.start()
    with sleeping() as worker:
        client.add(worker.pid)
        pid = find_watchdog(client)
        client.end()
        assert not Path(f"/proc/{pid}").exists()
        assert is_alive(worker.pid)
    assert folder.exists()


def test_a_watchdog_that_is_killed_again_and_again_is_given_up_with_a_warning(client: Watchdog) -> None:
    said: list[str] = []
    client._warn = said.append
    client._starts_left = 2
    for _ in range(2):
        kill_watchdog(client)
        client.replace()
    last = kill_watchdog(client)
    client.replace()
    assert not client.owns(last)
    assert said == ["if the agent is killed, no watchdog kills its workers on this host: 10 were killed"]
    with sleeping() as worker:
        client.add(worker.pid)
        client.remove(worker.pid)


def test_a_stopped_watchdog_does_not_block_the_agent_and_is_replaced_when_its_pipe_is_full(client: Watchdog) -> None:
    first = find_watchdog(client)
    os.kill(first, signal.SIGSTOP)
    with sleeping() as worker:
        client.add(worker.pid)
        for number in range(10_000):  # more than a pipe holds
            client.remove(2**22 + number)
        assert os.waitpid(first, 0)[1] == signal.SIGKILL
        client.replace()
        assert die(client) == 0
        assert worker.wait(LIMIT_SECONDS) == -signal.SIGKILL


def test_a_watchdog_leads_a_session_and_holds_no_folder(client: Watchdog) -> None:
    process = find(find_watchdog(client))
    assert process.session == process.pid
    wait_until(lambda: os.readlink(f"/proc/{process.pid}/cwd") == "/")  # noqa: PTH115 - as short as it gets


@pytest.fixture
def tree() -> ProcessTree:
    return ProcessTree(ORIGIN)


@pytest.fixture
def agent() -> Iterator[subprocess.Popen[bytes]]:
    with hiding() as (process, _):
        yield process


def pids(found: list[processes.Process]) -> set[int]:
    return {process.pid for process in found}


def test_a_process_seen_below_the_agent_is_a_member_after_its_end(
    tree: ProcessTree, agent: subprocess.Popen[bytes]
) -> None:
    below = {process.pid for process in processes.descendants(agent.pid)}
    tree.agent = agent.pid, find(agent.pid).started
    tree.look()
    assert tree.has_agent()
    assert not pids(tree.find()) & below
    agent.kill()
    agent.wait(LIMIT_SECONDS)
    assert not tree.has_agent()
    tree.look()  # no process is below the dead, and none is forgotten for it
    assert pids(tree.find()) == below


def test_a_descendant_of_a_member_is_a_member(tree: ProcessTree, agent: subprocess.Popen[bytes]) -> None:
    below = {process.pid for process in processes.descendants(agent.pid)}
    child = next(process for process in processes.descendants(agent.pid) if process.parent == agent.pid)
    tree.sessions[child.pid] = child.started
    assert pids(tree.find()) == below


def test_looks_cost_a_hundredth_of_the_time(tree: ProcessTree, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 3.0])  # the first look takes two seconds
    monkeypatch.setattr(tree, "look", lambda: None)
    assert WatchLoop(tree, lambda: next(times)).look() == 198.0


def test_a_process_with_the_agents_number_is_not_looked_at(tree: ProcessTree, agent: subprocess.Popen[bytes]) -> None:
    tree.agent = agent.pid, find(agent.pid).started - 1
    tree.look()
    assert not tree.has_agent()
    assert tree.find() == []


def test_a_process_with_the_pid_of_a_dead_member_is_not_a_member(
    tree: ProcessTree, agent: subprocess.Popen[bytes]
) -> None:
    tree.agent = agent.pid, find(agent.pid).started
    tree.look()
    tree._seen = {pid: started - 1 for pid, started in tree._seen.items()}
    agent.kill()
    agent.wait(LIMIT_SECONDS)
    assert tree.find() == []


def test_a_process_that_has_ended_is_forgotten(tree: ProcessTree, agent: subprocess.Popen[bytes]) -> None:
    tree.agent = agent.pid, find(agent.pid).started
    tree.look()
    below = tuple(processes.descendants(agent.pid))
    for process in below:
        processes.kill(process, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(process.pid) for process in below))
    tree.look()
    assert tree._seen == {}


def test_the_watchdog_is_no_member_though_it_is_below_the_agent(tree: ProcessTree) -> None:
    tree._seen[os.getpid()] = find(os.getpid()).started
    assert os.getpid() not in pids(tree.find())


def test_the_oldest_come_first_so_that_no_shell_continues_when_its_child_is_killed(tree: ProcessTree) -> None:
    with ExitStack() as stack:
        shells = [stack.enter_context(sleeping()) for _ in range(5)]
        tree.sessions.update({shell.pid: find(shell.pid).started for shell in shells})
        wait_until(lambda: len(tree.find()) == 2 * len(shells))  # each has started its sleep
        found = tree.find()
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
