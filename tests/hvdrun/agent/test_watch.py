"""The workers of a host: started once, ended as ordered, and reported when nothing of them is left."""

import asyncio
import errno
import os
import signal
from dataclasses import replace

import pytest

from hvdrun.agent.watch import STARTS_AT_ONCE
from hvdrun.processes import processes, reaper
from rendezvous.core.messages import Exited, Terminate
from rendezvous.core.outcome import Blame
from tests.hvdrun.agent.alone import alone
from tests.hvdrun.agent.jobs import make_launches
from tests.hvdrun.agent.sleepers import is_alive
from tests.hvdrun.agent.watching import LAUNCHES, WORKERS, watching
from tests.waiting import LIMIT_SECONDS, happen

SLEEPS = ("sh", "-c", "echo $$ > worker; sleep 600; true")
IGNORES = "trap 'echo $$ > asked' TERM; echo $$ > ready; while :; do sleep 0.02; done"


def order(index: int, grace_seconds: float) -> Terminate:
    return Terminate(WORKERS[index], grace_seconds, "the test wants it")


@alone
async def test_an_end_is_reported_until_it_is_acknowledged() -> None:
    async with watching("sh", "-c", "exit 3") as room:
        room.watch.launch(LAUNCHES[0])
        assert room.watch.running() == (WORKERS[0],)
        ends = await room.ended()
        assert ends == (Exited(WORKERS[0], 3),)
        assert room.watch.running() == ()
        room.watch.acknowledge(ends)
        assert room.watch.ended() == ()


@alone
async def test_a_worker_is_started_once_however_often_it_is_ordered() -> None:
    async with watching("sh", "-c", "echo x >> starts") as room:
        room.watch.launch(LAUNCHES[0])
        room.watch.launch(LAUNCHES[0])
        await room.ended()
        room.watch.launch(LAUNCHES[0])
        room.watch.launch(LAUNCHES[1])
        await room.ended(2)
        assert (room.folder / "starts").read_text() == "x\nx\n"


@alone
async def test_a_job_that_continues_gets_an_end_immediately_and_the_slot_when_nothing_is_left() -> None:
    script = "[ ! -s child ] || exit 4; setsid sh -c 'echo $$ > child; sleep 600; true' & "
    script += "until [ -s child ]; do sleep 0.01; done; exit 3"
    again = replace(LAUNCHES[0], worker=replace(WORKERS[0], incarnation=2))
    kill, processes.kill, reaper.REAP_SECONDS = processes.kill, lambda *_: None, LIMIT_SECONDS
    async with watching("sh", "-c", script, outlives_losses=True) as room:
        room.watch.launch(LAUNCHES[0])
        assert await room.ended() == (Exited(WORKERS[0], 3),)
        room.watch.launch(again)
        room.watch.launch(LAUNCHES[1])  # in another slot
        assert (await room.ended(2))[1] == Exited(WORKERS[1], 4)
        assert room.watch.running() == (again.worker,)
        child = await room.started("child")
        assert is_alive(child)
        processes.kill = kill
        assert (await room.ended(3))[2] == Exited(again.worker, 4)
        assert not is_alive(child)


@alone
async def test_a_stopped_worker_is_killed_with_its_processes_and_the_reason_is_reported() -> None:
    async with watching("sh", "-c", "sleep 600 & echo $! > child; kill -STOP $$; true") as room:
        room.watch.launch(LAUNCHES[0])
        child = await room.started("child")
        ((pid, name),) = room.watch.list_living()
        assert name == f"the worker {WORKERS[0]}"
        room.watch.note_stopped(pid, "it stood still")
        room.watch.note_stopped(pid, "it stood still")
        room.watch.note_stopped(child, "the agent has not started it as a worker")
        assert await room.ended() == (Exited(WORKERS[0], -9, "it stood still", was_stopped=True),)
        assert not is_alive(child)
        assert room.watch.list_living() == ()


@alone
async def test_a_host_without_resources_is_reported_as_an_end() -> None:
    async with watching("true") as room:
        room.spawner.error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        room.watch.launch(LAUNCHES[0])
        reason = "hvdrun cannot start a worker on a: Too many open files"
        assert await room.ended() == (Exited(WORKERS[0], 125, reason, cannot_start=True),)
        assert room.watch.running() == ()


@alone
async def test_an_unexpected_error_ends_the_agent_and_no_worker_waits_for_it() -> None:
    async with watching("true") as room:
        room.spawner.error = ZeroDivisionError()
        room.watch.launch(LAUNCHES[0])
        await happen(room.watch.failure.done)
        assert isinstance(room.watch.failure.exception(), ZeroDivisionError)


@alone
async def test_a_worker_is_asked_and_then_killed_at_the_earliest_time_ordered() -> None:
    async with watching("sh", "-c", IGNORES) as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        room.watch.terminate(order(0, 600))
        await room.started("asked")
        assert room.watch.running() == (WORKERS[0],)
        room.watch.terminate(order(0, 0.01))
        room.watch.terminate(order(0, 600))
        assert await room.ended() == (Exited(WORKERS[0], -signal.SIGKILL, was_stopped=True),)


@alone
async def test_an_interrupted_worker_is_asked_once_more_at_half_of_the_grace() -> None:
    waits = "echo $$ > ready; while :; do sleep 600 & wait $!; done"
    async with watching("sh", "-c", f"trap 'echo $$ > interrupted' INT; trap 'exit 5' TERM; {waits}") as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        room.watch.terminate(Terminate(WORKERS[0], 6, "Ctrl-C", signal=signal.SIGINT))
        await room.started("interrupted")
        assert await room.ended() == (Exited(WORKERS[0], 5, was_stopped=True),)


@alone
async def test_the_end_of_a_worker_that_blames_another_is_reported_when_its_process_has_ended() -> None:
    blame = Blame("rank 1 was cut off", (1,))
    async with watching("sh", "-c", "until [ -s go ]; do sleep 0.01; done; exit 7") as room:
        room.watch.launch(LAUNCHES[0])
        await happen(lambda: bool(room.watch.list_living()))
        room.watch.note_failure(WORKERS[0], 7, blame, follows=True)
        assert room.watch.ended() == ()
        (room.folder / "go").write_text("x")
        assert await room.ended() == (Exited(WORKERS[0], 7, blame=blame),)


@alone
async def test_a_kill_from_outside_is_reported_with_what_the_kernel_knows() -> None:
    async with watching("sh", "-c", "kill -9 $$") as room:
        room.watch.launch(LAUNCHES[0])
        (end,) = await room.ended()
        assert replace(end, evidence="") == Exited(WORKERS[0], -9)
        assert "kill it for memory" in end.evidence or not end.evidence  # where there is no memory cgroup


@alone
async def test_the_end_of_the_sequencer_is_reported() -> None:
    async with watching("true") as room:
        room.watch.changed.clear()
        room.watch.note_sequencer_end("it ended with SIGKILL (signal 9)")
        assert room.watch.changed.is_set()
        assert room.watch.sequencer_end == "it ended with SIGKILL (signal 9)"


@pytest.mark.parametrize("outlives_losses", [True, False])
@alone
async def test_a_worker_that_reports_its_failure_counts_as_ended_but_its_slot_waits(*, outlives_losses: bool) -> None:
    again = replace(LAUNCHES[0], worker=replace(WORKERS[0], incarnation=2))
    script = "trap 'echo asked > asked' TERM; echo $$ >> ready; until [ -s go ]; do sleep 0.01; done; exit 7"
    async with watching("sh", "-c", script, outlives_losses=outlives_losses, grace_seconds=600) as room:
        room.watch.launch(LAUNCHES[0])
        pid = await room.started("ready")
        room.watch.note_failure(WORKERS[0], 3)
        room.watch.note_failure(WORKERS[0], 4)
        assert room.watch.ended() == (Exited(WORKERS[0], 3),)
        room.watch.acknowledge(room.watch.ended())
        room.watch.terminate(order(0, 600))
        room.watch.launch(again)
        assert room.watch.running() == (again.worker,)
        failed = asyncio.create_task(room.watch.await_failed())
        await asyncio.sleep(0)
        assert is_alive(pid)
        assert not failed.done()
        assert room.spawner.begun == 1
        (room.folder / "go").write_text("x")
        await asyncio.wait_for(failed, LIMIT_SECONDS)
        assert await room.ended() == (Exited(again.worker, 7),)
        assert not (room.folder / "asked").exists()
        room.watch.note_failure(WORKERS[0], 5)
        assert await room.ended() == (Exited(again.worker, 7),)


@alone
async def test_a_worker_that_ends_with_0_and_is_stopped_then_has_left() -> None:
    async with watching("sh", "-c", "echo $$ > ready; sleep 600; true", grace_seconds=600) as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        room.watch.note_failure(WORKERS[0], 0)
        assert room.watch.running() == (WORKERS[0],)
        assert room.watch.ended() == ()
        room.watch.terminate(order(0, 600))
        assert await room.ended() == (Exited(WORKERS[0], -signal.SIGTERM, has_left=True, was_stopped=True),)


@pytest.mark.parametrize(("returncode", "is_early"), [(0, False), (3, True)])
@alone
async def test_a_stopped_or_failed_worker_does_not_count_as_one_that_left(returncode: int, *, is_early: bool) -> None:
    script = f"trap 'exit {returncode}' TERM; echo $$ > ready; while :; do sleep 0.01; done"
    async with watching("sh", "-c", script) as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        if is_early:
            room.watch.note_failure(WORKERS[0], 0)
        room.watch.terminate(order(0, 600))
        room.watch.note_failure(WORKERS[0], 0)
        assert await room.ended() == (Exited(WORKERS[0], returncode, was_stopped=True),)


@alone
async def test_a_worker_that_fails_is_killed_after_the_grace() -> None:
    async with watching("sh", "-c", "echo $$ > ready; sleep 600; true", grace_seconds=0.01) as room:
        room.watch.launch(LAUNCHES[0])
        pid = await room.started("ready")
        room.watch.note_failure(WORKERS[0], 3)
        await happen(lambda: not is_alive(pid))
        assert room.watch.ended() == (Exited(WORKERS[0], 3),)


@pytest.mark.parametrize("lets_save", [True, False])
@alone
async def test_a_worker_that_may_save_is_asked_before_its_helpers(*, lets_save: bool) -> None:
    judge = "sleep 0.5; [ ! -e asked ] || exit 6; exit 5"
    helper = "trap 'echo $$ > asked; exit' TERM; echo $$ > helps; while :; do sleep 0.01; done"
    async with watching(
        "sh", "-c", f"({helper}) & trap '{judge}' TERM; echo $$ > ready; while :; do sleep 0.01; done"
    ) as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        await room.started("helps")
        room.watch.terminate(Terminate(WORKERS[0], 600, "a restart is planned", lets_save=lets_save))
        assert await room.ended() == (Exited(WORKERS[0], 5 if lets_save else 6, was_stopped=True),)


@alone
async def test_helpers_of_a_worker_are_asked_at_half_of_the_grace() -> None:
    helper = "trap 'echo $$ > asked; exit' TERM; echo $$ > helps; while :; do sleep 0.01; done"
    waits = "trap : TERM; echo $$ > ready; while [ ! -e asked ]; do sleep 0.01; done; exit 5"
    async with watching("sh", "-c", f"({helper}) & {waits}") as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        await room.started("helps")
        room.watch.terminate(Terminate(WORKERS[0], 4, "a restart is planned", lets_save=True))
        assert await room.ended() == (Exited(WORKERS[0], 5, was_stopped=True),)


@alone
async def test_processes_of_a_worker_that_may_save_are_asked_to_end() -> None:
    helper = "trap 'echo $$ > asked; exit' TERM; echo $$ > helps; while :; do sleep 0.01; done"
    async with watching(
        "sh", "-c", f"({helper}) & trap 'exit 0' TERM; echo $$ > ready; while :; do sleep 0.01; done"
    ) as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        pid = await room.started("helps")
        room.watch.terminate(Terminate(WORKERS[0], 600, "a restart is planned", lets_save=True))
        await room.started("asked")
        await happen(lambda: not is_alive(pid))
        assert await room.ended() == (Exited(WORKERS[0], 0, was_stopped=True),)


@alone
async def test_the_end_of_a_worker_begins_a_look_for_a_world() -> None:
    async with watching("sh", "-c", "exit 3", finds_world=lambda: True) as room:
        assert not room.watch.has_world
        room.watch.launch(LAUNCHES[0])
        await room.ended()
        assert room.watch.has_world


@alone
async def test_without_grace_a_worker_is_not_asked() -> None:
    async with watching("sh", "-c", IGNORES) as room:
        room.watch.launch(LAUNCHES[0])
        await room.started("ready")
        room.watch.terminate(order(0, 0))
        assert await room.ended() == (Exited(WORKERS[0], -signal.SIGKILL, was_stopped=True),)
        assert not (room.folder / "asked").exists()


@alone
async def test_an_order_to_end_a_worker_that_is_just_being_started_is_not_lost() -> None:
    async with watching("sleep", "600") as room:
        room.spawner.may_report.clear()
        room.watch.launch(LAUNCHES[0])
        await happen(lambda: room.spawner.begun == 1)
        room.watch.terminate(order(0, 600))
        assert room.watch.running() == (WORKERS[0],)
        room.spawner.may_report.set()
        assert await room.ended() == (Exited(WORKERS[0], -signal.SIGTERM, was_stopped=True),)


@alone
async def test_a_worker_whose_end_is_ordered_before_its_start_never_starts() -> None:
    async with watching("sleep", "600") as room:
        room.spawner.may_prepare.clear()
        for launch in LAUNCHES:
            room.watch.launch(launch)
        await asyncio.sleep(0)
        assert room.watch.running() == WORKERS
        room.watch.terminate(order(0, 600))
        assert room.watch.ended() == (Exited.before_start(WORKERS[0]),)
        room.spawner.may_prepare.set()
        await happen(lambda: room.spawner.begun == 1)
        room.watch.terminate(order(1, 0))
        assert (await room.ended(2))[1] == Exited(WORKERS[1], -signal.SIGKILL, was_stopped=True)
        assert room.spawner.begun == 1


@alone
async def test_a_worker_that_ends_before_the_news_of_its_birth_is_not_lost() -> None:
    async with watching("sh", "-c", "echo $$ > worker; exit 4") as room:
        room.spawner.may_report.clear()
        room.watch.launch(LAUNCHES[0])
        pid = await room.started("worker")
        await happen(lambda: processes.look(pid) is None, "its reaping")
        room.spawner.may_report.set()
        assert await room.ended() == (Exited(WORKERS[0], 4),)


@alone
async def test_closing_kills_a_worker_that_is_starting_and_starts_no_other() -> None:
    async with watching(*SLEEPS) as room:
        room.spawner.may_report.clear()
        room.watch.launch(LAUNCHES[0])
        pid = await room.started("worker")
        await room.watch.close()
        assert not is_alive(pid)
        room.watch.launch(LAUNCHES[1])
        assert room.watch.running() == ()


@alone
async def test_closing_ends_an_orphan_that_carries_no_name() -> None:
    # The process has left the session and the environment, and its parent has ended.
    script = "(setsid env -i sh -c 'echo $$ > orphan; sleep 600; true' &); sleep 600"
    async with watching("sh", "-c", script) as room:
        room.watch.launch(LAUNCHES[0])
        pid = await room.started("orphan")
        await room.watch.close()
        assert not is_alive(pid)


@alone
async def test_a_few_workers_are_started_at_a_time_and_a_waiting_one_can_still_be_left_out() -> None:
    launches = make_launches(STARTS_AT_ONCE + 4)
    async with watching("true") as room:
        room.spawner.may_report.clear()
        for launch in launches:
            room.watch.launch(launch)
        await happen(lambda: room.spawner.begun == STARTS_AT_ONCE)
        assert len(room.watch.running()) == len(launches)
        late = launches[-1].worker
        room.watch.terminate(Terminate(late, 600, "the test wants it"))
        assert room.watch.ended() == (Exited.before_start(late),)
        room.spawner.may_report.set()
        await room.ended(len(launches))
        assert room.spawner.begun == len(launches) - 1


@alone
async def test_closing_starts_no_worker_that_waits_for_its_start() -> None:
    async with watching("sleep", "600") as room:
        room.spawner.may_report.clear()
        for launch in make_launches(STARTS_AT_ONCE + 4):
            room.watch.launch(launch)
        await happen(lambda: room.spawner.begun == STARTS_AT_ONCE)
        await room.watch.close()
        assert room.spawner.begun == STARTS_AT_ONCE


@alone
async def test_a_start_that_fails_ends_the_wait_for_all_ends() -> None:
    async with watching("true") as room:
        room.watch.launch(LAUNCHES[0])
        await room.ended()
        room.spawner.error = OSError(errno.EMFILE, "Too many open files")
        room.watch.launch(LAUNCHES[1])
        async with asyncio.timeout(LIMIT_SECONDS):
            await room.watch.await_ended()


@alone
async def test_more_workers_than_the_machine_can_hold_are_not_started_and_reported_once() -> None:
    async with watching("true") as room:
        launches = make_launches(3)
        for launch in launches:
            too_large = replace(launch.assignment, local_size=10_000_000)
            room.watch.launch(replace(launch, assignment=too_large))
        first, *others = room.watch.ended()
        assert (first.worker, first.returncode) == (launches[0].worker, 125)
        assert (first.error or "").startswith("the workers on a cannot be started: 10000000 workers ")
        assert [(end.returncode, end.error) for end in others] == [(125, None)] * 2
        assert room.watch.running() == ()
