"""The agent's side of its guardian."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.agent.guard import Guard
from tests.hvdrun.agent.jobs import ORIGIN
from tests.hvdrun.agent.sleepers import find, is_alive, sleeping
from tests.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "hvdrun-folder"
    path.mkdir()
    return path


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


def test_a_guardian_that_dies_again_and_again_is_given_up(guard: Guard) -> None:
    guard._starts_left = 2
    for _ in range(2):
        kill_guardian(guard)
        guard.replace()
    last = kill_guardian(guard)
    guard.replace()
    assert not guard.owns(last)
    with sleeping() as worker:
        guard.add(worker.pid)
        guard.remove(worker.pid)


def test_a_guardian_leads_a_session_and_holds_no_folder(guard: Guard) -> None:
    process = find(find_guardian(guard))
    assert process.session == process.pid
    wait_until(lambda: os.readlink(f"/proc/{process.pid}/cwd") == "/")  # noqa: PTH115 - as short as it gets
