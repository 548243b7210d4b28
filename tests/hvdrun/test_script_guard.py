"""What is left of the runs of a script when hvdrun is killed, and what stands beside hvdrun for that."""

import os
import signal

from hvdrun.agent import processes
from hvdrun.script_guard import ScriptGuard
from rendezvous.bootstrap import INCARNATION, JOB, SLOT
from tests.hvdrun.agent.sleepers import is_alive, sleeping
from tests.waiting import wait_until


def find_guardian(guard: ScriptGuard) -> int:
    assert guard.pid is not None
    return guard.pid


def test_a_guardian_is_there_while_it_is_entered_and_ends_nothing_then() -> None:
    with sleeping() as run:
        with ScriptGuard({}) as guard:
            pid = find_guardian(guard)
            guard.add(run.pid)
        assert processes.look(pid) is None
        assert guard.pid is None
        assert is_alive(run.pid)


def test_one_that_was_killed_or_stopped_is_made_good() -> None:
    with sleeping() as run, ScriptGuard({}) as guard:
        first = find_guardian(guard)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first))
        guard.remove(run.pid)  # which nobody hears
        guard.add(run.pid)
        second = find_guardian(guard)
        assert second != first
        assert processes.look(first) is None
        os.kill(second, signal.SIGSTOP)
    assert processes.look(second) is None


def test_a_run_belongs_to_no_worker_but_to_the_one_that_hvdrun_runs_in() -> None:
    alone = ScriptGuard({"PATH": "/bin"}).environment
    assert set(alone) == {"PATH", JOB}
    inner = ScriptGuard({JOB: "outer", SLOT: "a:0", INCARNATION: "2"}).environment
    origin = processes.name_origin(inner)
    assert origin is not None
    assert origin.startswith("outer/a/0.2/")
