"""What is counted to recoveries, and which steps are repeated."""

from pathlib import Path

import pytest

from rendezvous.wire.account_file import Part
from rendezvous.wire.accounts import RecoveryTime, WaitedFor
from tests.worker_runtime.account.scene import Clock, Scene, run_in_thread
from worker_runtime.account import account as module


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A process that runs a function that can be restarted."""
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    scene = Scene(clock, tmp_path / "account")
    scene.account.begin_function()
    scene.clock.spend(1)
    scene.account.begin_training()
    return scene


def recover(scene: Scene, *, restores: bool = True) -> None:
    """An exception, 2 s until the next generation is there, and 3 s for the state."""
    scene.account.begin_recovery()
    scene.clock.spend(2)
    scene.account.note_formed(7)
    if restores:
        scene.account.note_restored()
    scene.account.enter(Part.WAITING)
    scene.clock.spend(3)
    scene.account.leave_wait(1, 0)
    scene.account.begin_training()


def test_the_synchronized_state_belongs_to_the_start(scene: Scene) -> None:
    scene.step(1)
    assert (scene.read().start_seconds, scene.read().compute_seconds) == (11, 1)


def test_steps_since_the_commit_are_repeated_after_the_state_was_restored(scene: Scene) -> None:
    scene.step(1)
    scene.account.note_commit()
    for _ in range(3):
        scene.step(1, 0.5)
    recover(scene)
    scene.step(1, 0.5)
    scene.step(1, 0.5)
    assert scene.read().recoveries == (RecoveryTime(7, 2, 3, 0),)
    scene.step(1, 0.5)
    scene.step(1, 0.5)
    found = scene.read()
    assert (found.steps, found.repeated_steps) == (8, 3)
    assert (found.recovery_seconds, found.repeated_seconds, found.compute_seconds) == (5, 4.5, 5)
    assert (found.recoveries, found.waited_for) == ((RecoveryTime(7, 2, 3, 4.5),), (WaitedFor(1, 2.0, 4),))
    assert scene.find_unknown() == 0


def test_a_state_that_is_kept_repeats_no_step(scene: Scene) -> None:
    scene.step(1)
    recover(scene, restores=False)
    scene.step(1)
    found = scene.read()
    assert (found.steps, found.repeated_steps, found.recoveries) == (2, 0, (RecoveryTime(7, 2, 3, 0),))


def test_a_failure_while_steps_are_repeated_begins_another_recovery(scene: Scene) -> None:
    for _ in range(3):
        scene.step(1)
    recover(scene)
    scene.step(1)
    recover(scene)
    for _ in range(4):
        scene.step(1)
    found = scene.read()
    assert found.recoveries == (RecoveryTime(7, 2, 3, 1), RecoveryTime(7, 2, 3, 3))
    assert (found.repeated_steps, found.repeated_seconds, found.compute_seconds) == (4, 4, 4)


def test_a_commit_among_repeated_steps_leaves_the_rest_to_repeat(scene: Scene) -> None:
    for _ in range(3):
        scene.step(1)
    recover(scene)
    scene.step(1)
    scene.account.note_commit()
    recover(scene)
    scene.step(1)
    scene.step(1)
    scene.step(1)
    assert (scene.read().repeated_steps, scene.read().repeated_seconds) == (3, 3)


def test_a_failure_in_a_recovery_leaves_two_whose_times_add_up(scene: Scene) -> None:
    scene.account.begin_recovery()
    scene.clock.spend(1)
    scene.account.note_formed(5)
    scene.clock.spend(2)
    recover(scene)
    assert scene.read().recoveries == (RecoveryTime(5, 1, 0, 0), RecoveryTime(7, 4, 3, 0))
    assert (scene.read().recovery_seconds, scene.find_unknown()) == (8, 0)


def test_a_wait_is_split_where_another_thread_has_recovered_meanwhile(scene: Scene) -> None:
    scene.step(1)
    scene.account.enter(Part.WAITING)
    scene.clock.spend(1)  # until the loss is noticed
    run_in_thread(scene.account.note_interrupted)
    scene.clock.spend(2)
    run_in_thread(lambda: scene.account.note_resumed(4))
    scene.clock.spend(4)
    scene.account.leave_wait(2, 0)
    found = scene.read()
    assert (found.waiting_seconds, found.recovery_seconds) == (5, 2)
    assert (found.waited_for, found.recoveries) == ((WaitedFor(2, 4.0, 0),), (RecoveryTime(4, 2, 0, 0),))
    scene.step(1, 1)
    assert (scene.read().waiting_seconds, scene.find_unknown()) == (6, 0)


def test_a_recovery_during_a_computation_costs_no_time_of_the_program(scene: Scene) -> None:
    scene.clock.spend(1)
    scene.account.note_interrupted()
    scene.clock.spend(1)
    scene.account.note_resumed(4)
    scene.step(1, 0.5)
    found = scene.read()
    assert (found.compute_seconds, found.recovery_seconds, found.waiting_seconds) == (3, 0, 0.5)
    assert found.recoveries == (RecoveryTime(4, 1, 0, 0),)


def test_a_loss_that_ends_in_an_exception_is_a_recovery_from_its_notice_on(scene: Scene) -> None:
    scene.step(1)
    scene.account.enter(Part.WAITING)
    scene.clock.spend(1)
    scene.account.note_interrupted()
    scene.clock.spend(2)
    scene.account.leave_wait(-1, 0)
    recover(scene, restores=False)
    found = scene.read()
    assert (found.waiting_seconds, found.recovery_seconds) == (1, 7)
    assert found.recoveries == (RecoveryTime(7, 4, 3, 0),)
    scene.step(1, 1)
    assert (scene.read().waiting_seconds, scene.find_unknown()) == (2, 0)


def test_an_attempt_that_was_interrupted_leaves_nothing_behind(scene: Scene) -> None:
    scene.account.begin_recovery()
    scene.account.note_interrupted()
    scene.account.note_formed(5)
    scene.account.begin_training()
    scene.step(1, 1)
    assert (scene.read().waiting_seconds, scene.read().recovery_seconds) == (1, 0)


def test_a_function_that_ends_repeats_nothing_more(scene: Scene) -> None:
    scene.step(1)
    scene.step(1)
    recover(scene)
    scene.step(1)
    scene.account.end_function()
    scene.step(1, 1)
    found = scene.read()
    assert (found.repeated_seconds, found.waiting_seconds, found.recoveries) == (1, 1, (RecoveryTime(7, 2, 3, 1),))
