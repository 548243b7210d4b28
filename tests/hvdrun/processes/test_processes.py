"""Whose a process is, and that only the right ones are ever hit."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from hvdrun.processes import processes
from hvdrun.processes.processes import KillLoop, Process, comes_from, name_origin, name_worker_origin
from rendezvous.core.model import Slot, Worker
from tests.hvdrun.agent.sleepers import find, sleeping
from tests.waiting import LIMIT_SECONDS, wait_until

WORKER = {"HVD_JOB": "job", "HVD_SLOT": "a:0", "HVD_INCARNATION": "1"}
INNER = {"HVD_JOB": "job/a/0.1/inner", "HVD_SLOT": "localhost:0", "HVD_INCARNATION": "1"}


def test_a_living_process_is_found_with_its_parent_session_and_start() -> None:
    with sleeping() as sleeper:
        seen = find(sleeper.pid)
    assert (seen.pid, seen.parent, seen.session) == (sleeper.pid, os.getpid(), sleeper.pid)
    assert not seen.is_dead
    assert seen.started > find(os.getpid()).started


def test_a_process_that_has_gone_is_not_found_and_not_signalled() -> None:
    with sleeping(environment=WORKER) as sleeper:
        seen = find(sleeper.pid)
    assert processes.look(sleeper.pid) is None
    assert list(processes.descendants(sleeper.pid)) == []
    assert not comes_from(seen, "job")
    processes.kill(seen, signal.SIGKILL)


def test_a_process_whose_name_looks_like_the_next_fields_of_stat_is_read_correctly(tmp_path: Path) -> None:
    program = tmp_path / "x) Z 1 ("
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "600"]) as process:
        try:
            seen = find(process.pid)
            assert seen.parent == os.getpid()
            assert not seen.is_dead
        finally:
            process.kill()


def test_an_ended_process_is_dead_though_not_reaped() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert find(process.pid).is_dead
        assert process.pid not in {other.pid for other in processes.running()}


def test_descendants_are_found_at_every_depth_without_the_dead() -> None:
    with sleeping("sh -c 'sleep 600; true' & true & sleep 0.1 & wait $!") as sleeper:
        wait_until(lambda: len(list(processes.descendants(sleeper.pid))) == 3)
        found = list(processes.descendants(sleeper.pid))  # the shell, what it runs, and the last sleep
        parents = {process.pid: process.parent for process in found}
        assert sorted(parent == sleeper.pid for parent in parents.values()) == [False, True, True]
        assert all(parent in {sleeper.pid, *parents} for parent in parents.values())


def test_children_of_other_threads_are_descendants() -> None:
    start = "lambda: (print(subprocess.Popen(['sleep', '600']).pid, flush=True), threading.Event().wait())"
    program = f"import subprocess, threading; threading.Thread(target={start}).start()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert [process.pid for process in processes.descendants(parent.pid)] == [child]
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()


@pytest.mark.parametrize(
    ("environment", "origin"),
    [
        ({}, None),
        ({"HVD_SLOT": "a:0"}, None),
        (WORKER, "job/a/0.1"),
        (WORKER | {"HVD_SLOT": "2001:db8::1:3", "HVD_INCARNATION": "12"}, "job/2001:db8::1/3.12"),
        (INNER, "job/a/0.1/inner/localhost/0.1"),
        ({"HVD_JOB": "job"}, "job"),
        (WORKER | {"HVD_SLOT": "first"}, "job"),
    ],
)
def test_an_origin_is_read_from_an_environment(environment: dict[str, str], origin: str | None) -> None:
    assert name_origin(environment) == origin


def test_a_worker_has_the_origin_of_its_environment() -> None:
    assert name_worker_origin("job", Worker(Slot("a", 0), 1)) == name_origin(WORKER)


@pytest.mark.parametrize(
    ("environment", "around", "others"),
    [
        (WORKER, "job/a/0.1 job/a job", "job/a/0.2 job/b jo"),
        (WORKER | {"HVD_INCARNATION": "12"}, "job/a/0.12", "job/a/0.1"),
        (WORKER | {"HVD_SLOT": "ab:0"}, "job/ab", "job/a"),
        (INNER, "job/a/0.1 job/a/0.1/inner/localhost", "job/localhost/0.1"),
        ({}, "", "job"),
    ],
)
def test_a_process_comes_from_all_around_its_start(environment: dict[str, str], around: str, others: str) -> None:
    with sleeping(environment=environment) as sleeper:
        process = find(sleeper.pid)
        comes = {origin for origin in f"{around} {others}".split() if comes_from(process, origin)}
        assert comes == {*around.split()}


@pytest.mark.parametrize(
    ("origin", "worker"),
    [
        ("job/a/0.1", "job/a/0.1"),
        ("job/a/0.1/inner/localhost/3.1", "job/a/0.1"),
        ("job/a/12.2", "job/a/12.2"),
        ("job/ab/0.1", ""),
        ("job/a", ""),
        (None, ""),
    ],
)
def test_an_origin_names_the_agent_s_own_worker(origin: str | None, worker: str) -> None:
    assert processes.cut_worker_origin(origin, "job/a") == worker


@pytest.mark.parametrize("error", [None, AttributeError(), OSError(errno.ENOSYS, ""), OSError(errno.EPERM, "")])
def test_a_process_that_took_over_a_number_is_not_hit(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if error is not None:  # what Pythons, kernels and containers without pidfds say
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=error))
    with sleeping() as sleeper:
        seen = find(sleeper.pid)
        processes.kill(replace(seen, started=seen.started - 1), signal.SIGKILL)
        processes.kill(seen, signal.SIGTERM)
        assert sleeper.wait(LIMIT_SECONDS) == -signal.SIGTERM


def test_a_kill_loop_ends_after_clean_looks_and_spares_resource_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping() as one, sleeping() as tracker:
        monkeypatch.setattr(processes, "is_resource_tracker", lambda process: process.pid == tracker.pid)
        loop = KillLoop(600, 2)
        loop.kill([find(one.pid), find(tracker.pid)])
        assert one.wait(LIMIT_SECONDS) == -signal.SIGKILL
        assert tracker.poll() is None
        monkeypatch.setattr(processes, "TRACKER_SECONDS", 0.0)
        KillLoop(600, 2).kill([find(tracker.pid)])
        assert tracker.wait(LIMIT_SECONDS) == -signal.SIGKILL
    done = []
    looks: list[list[Process] | None] = [[], None, [], []]  # a look that failed is not clean
    for found in looks:
        loop.kill(found)
        done.append(loop.is_done)
    assert done == [False, False, False, True]


def test_a_kill_loop_ends_at_its_limit() -> None:
    loop = KillLoop(0, 2)
    done = []
    for _ in range(2):
        loop.kill(None)
        done.append(loop.is_done)
    assert done == [False, True]
