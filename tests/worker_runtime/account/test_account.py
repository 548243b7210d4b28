"""What is counted to which part of a process's time."""

import os
from pathlib import Path

import pytest

from rendezvous.wire.account_file import BYTES, Part
from rendezvous.wire.accounts import WaitedFor
from tests.worker_runtime.account.scene import Clock, Scene, run_in_thread
from tests.worker_runtime.ranks import ask_child
from worker_runtime.account import account as module
from worker_runtime.account.account import Account


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A process that counts."""
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return Scene(clock, tmp_path / "account")


def test_each_second_of_a_training_is_in_a_part(scene: Scene) -> None:
    scene.account.cover(Part.START)
    scene.clock.spend(5)
    scene.account.cover(0)
    scene.clock.spend(2)  # the program makes its model
    scene.account.enter(Part.WAITING)
    scene.clock.spend(0.5)
    scene.account.leave_wait(1, 0)
    for _ in range(3):
        scene.step(1, 0.25, 1, 0.125)
    with scene.account.covering(Part.COMMIT):
        scene.clock.spend(1)
        with scene.account.covering(Part.CHECKPOINT):  # within the other
            scene.account.enter(Part.WAITING)
            scene.clock.spend(2)
            scene.account.leave_wait(1, 0)
        scene.clock.spend(1)
    found = scene.read()
    assert (found.start_seconds, found.compute_seconds, found.waiting_seconds) == (17, 3, 1.25)
    assert (found.communication_seconds, found.commit_seconds, found.checkpoint_seconds) == (0.375, 2, 2)
    assert (found.steps, found.waited_for) == (3, (WaitedFor(1, 1.25, 3),))
    assert scene.find_unknown() == 0


def test_imports_before_the_optimizer_belong_to_the_start(scene: Scene) -> None:
    scene.clock.spend(3)  # nothing blocks
    scene.account.note_optimizer()
    scene.step(1)
    scene.clock.spend(2)
    scene.account.note_optimizer()  # another one, in the middle of the training
    scene.step(1)
    found = scene.read()
    assert (found.start_seconds, found.compute_seconds) == (13, 4)


def test_a_rank_that_was_the_last_itself_waits_for_no_other(scene: Scene) -> None:
    scene.step(1, 0.5, 0)
    scene.step(1, 0.5, -1)
    found = scene.read()
    assert (found.communication_seconds, found.waiting_seconds, found.waited_for) == (0.5, 0.5, ())


def test_a_step_counts_for_the_rank_that_was_waited_for_longest(scene: Scene) -> None:
    for last, seconds in ((1, 0.5), (2, 0.75), (1, 0.25)):
        scene.account.enter(Part.WAITING)
        scene.clock.spend(seconds)
        scene.account.leave_wait(last, 0)
    scene.step(1)
    assert scene.read().waited_for == (WaitedFor(1, 0.75, 0), WaitedFor(2, 0.75, 1))


def test_a_rank_beyond_the_file_is_not_named(scene: Scene) -> None:
    scene.step(1, 0.5, 1_000_000)
    assert (scene.read().waiting_seconds, scene.read().waited_for) == (0.5, ())


def test_a_commit_ends_a_step_where_no_optimizer_of_ours_does(scene: Scene) -> None:
    scene.clock.spend(3)
    scene.account.enter(Part.COMMUNICATION)
    scene.account.leave()
    scene.account.settle_start()
    for _ in range(2):
        scene.clock.spend(1)
        scene.account.note_commit()
    assert (scene.read().start_seconds, scene.read().compute_seconds, scene.read().steps) == (13, 2, 2)
    scene.step(1)
    scene.account.note_commit()
    assert scene.read().steps == 3


def test_a_program_without_steps_computes_nothing(scene: Scene) -> None:
    scene.clock.spend(3)
    assert (scene.read().compute_seconds, scene.find_unknown()) == (0, 3)


def test_time_after_the_last_step_is_not_known_until_the_program_ends(scene: Scene) -> None:
    scene.step(1)
    scene.clock.spend(2)
    scene.account.end()
    scene.clock.spend(3)
    scene.account.enter(Part.WAITING)
    assert (scene.read().compute_seconds, scene.read().idle_seconds, scene.find_unknown()) == (1, 3, 2)


def test_the_time_of_another_thread_is_no_part(scene: Scene) -> None:
    scene.step(1)

    def work() -> None:
        scene.account.enter(Part.WAITING)
        scene.clock.spend(4)
        scene.account.leave_wait(1, 0)
        scene.account.leave()
        with scene.account.covering(Part.COMMIT):
            scene.clock.spend(4)
        scene.account.end_step()

    run_in_thread(work)
    scene.step(1)
    assert (scene.read().compute_seconds, scene.read().steps, scene.find_unknown()) == (10, 2, 0)


def test_the_first_thread_that_trains_is_counted(scene: Scene) -> None:
    run_in_thread(lambda: scene.step(1, 0.5))
    scene.account.enter(Part.COMMIT)
    scene.clock.spend(1)
    assert (scene.read().steps, scene.read().waiting_seconds, scene.read().commit_seconds) == (1, 0.5, 0)


def test_a_fork_of_the_program_does_not_write_into_its_account(scene: Scene) -> None:
    scene.step(1)
    before = scene.path.read_bytes()

    def train() -> int:
        scene.account.abandon()
        scene.step(5)
        scene.account.end()
        return scene.read().steps

    assert ask_child(train) == 1
    assert scene.path.read_bytes() == before


def test_a_second_program_of_a_worker_continues_its_account(scene: Scene) -> None:
    scene.step(1)
    scene.account.end()
    scene.clock.spend(2)
    scene.account = Account()
    scene.account.open(scene.path)
    scene.clock.spend(4)
    scene.account.cover(0)
    scene.account.enter(Part.COMMUNICATION)
    scene.account.leave()
    scene.step(1)
    found = scene.read()
    assert (found.steps, found.start_seconds, found.compute_seconds, scene.find_unknown()) == (2, 16, 2, 0)


def test_a_second_init_is_another_start_of_the_same_account(scene: Scene) -> None:
    scene.step(1)
    scene.account.open(None)
    scene.clock.spend(2)
    scene.account.cover(0)
    scene.step(1)
    found = scene.read()
    assert (found.steps, found.start_seconds, found.compute_seconds) == (2, 12, 2)


@pytest.mark.parametrize("fault", ["no folder", "no room"])
def test_a_file_that_cannot_be_made_is_no_error(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "missing" / "account"
    if fault == "no room":
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        path = tmp_path / "account"
    account = Account()
    account.open(path)
    account.end_step()
    assert not path.exists() or path.stat().st_size < BYTES
