"""The spans of a timeline that an account makes of its changes."""

from pathlib import Path

import pytest

from rendezvous.wire.account_file import Part
from tests.worker_runtime.account.scene import Clock, Scene, run_in_thread
from worker_runtime.account import account as module
from worker_runtime.account.spans import SHORTEST_SECONDS


class RecordedScene(Scene):
    """A process that records a timeline.

    spans: what it has noted: names, begins and ends.
    """

    def __init__(self, clock: Clock, path: Path) -> None:
        super().__init__(clock, path)
        self.spans: list[tuple[str, float, float]] = []
        self.account.record(lambda row, name, *times: self.spans.append((f"{row}: {name}", *times)))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedScene:
    """A process that records a timeline since 100."""
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return RecordedScene(clock, tmp_path / "account")


def spend_optimizer(scene: Scene) -> None:
    """A step whose optimizer takes two seconds."""
    scene.clock.spend(1)
    scene.account.enter(Part.WAITING)
    scene.clock.spend(3)
    scene.account.leave_wait(2, 0)
    scene.account.enter(Part.COMMUNICATION)
    scene.clock.spend(4)
    scene.account.leave()
    scene.clock.spend(2)
    scene.account.end_step()


def test_a_step_has_a_span_with_those_of_its_parts_in_it(scene: RecordedScene) -> None:
    spend_optimizer(scene)
    assert scene.spans == [
        ("steps: forward+backward", 100, 101),
        ("steps: waiting for rank 2", 101, 104),
        ("steps: running", 104, 108),
        ("steps: optimizer", 108, 110),
        ("steps: step 1", 100, 110),
    ]


def test_a_step_begins_after_what_is_no_part_of_it(scene: RecordedScene) -> None:
    spend_optimizer(scene)
    with scene.account.covering(Part.COMMIT):
        scene.clock.spend(1)
    del scene.spans[:]
    scene.step(1)
    assert scene.spans == [
        ("steps: commit", 110, 111),
        ("steps: forward+backward", 111, 112),
        ("steps: step 2", 111, 112),
    ]


def test_a_recovery_is_one_span_whatever_blocks_in_it(scene: RecordedScene) -> None:
    scene.account.begin_recovery()
    for _ in range(3):
        scene.account.enter(Part.WAITING)
        scene.clock.spend(1)
        scene.account.leave_wait(1, 0)
        scene.clock.spend(1)
    scene.account.note_formed(7)
    scene.account.begin_training()
    scene.step(1)
    assert sorted(scene.spans[:2]) == [("recoveries: recovery", 100, 106), ("steps: recovery", 100, 106)]
    assert [name for name, *_ in scene.spans[2:]] == ["steps: forward+backward", "steps: step 1"]


def test_a_wait_whose_last_rank_is_not_known_names_no_rank(scene: RecordedScene) -> None:
    scene.step(1, 1, 2)
    scene.step(1, 1, -1)
    scene.step(1, 1, 0)
    names = [name for name, *_ in scene.spans if "step " not in name and "backward" not in name]
    assert names == ["steps: waiting for rank 2", "steps: waiting", "steps: running"]


def test_repeated_steps_say_that_they_are(scene: RecordedScene) -> None:
    scene.account.begin_training()
    scene.step(1)
    scene.account.begin_recovery()
    scene.clock.spend(2)
    scene.account.note_formed(7)
    scene.account.note_restored()
    scene.account.begin_training()
    del scene.spans[:]
    scene.step(1, 1)
    scene.step(1)
    names = [name for name, *_ in scene.spans]
    expected = ["recovery", "step 2 (repeated)", "forward+backward", "step 3"]
    assert names == [f"steps: {name}" for name in expected]


def test_a_recovery_in_another_thread_has_its_place_in_the_wait(scene: RecordedScene) -> None:
    scene.account.enter(Part.WAITING)
    scene.clock.spend(1)
    run_in_thread(scene.account.note_interrupted)
    scene.clock.spend(2)
    run_in_thread(lambda: scene.account.note_resumed(4))
    scene.clock.spend(4)
    scene.account.leave_wait(2, 0)
    assert scene.spans == [
        ("steps: waiting", 100, 101),
        ("steps: recovery", 101, 103),
        ("recoveries: recovery", 101, 103),
        ("steps: waiting for rank 2", 103, 107),
    ]


def test_a_bucket_that_fills_has_a_row_of_its_own(scene: RecordedScene) -> None:
    began = scene.account.begin_fill()
    scene.clock.spend(1)
    scene.account.end_fill("allreduce.a", began)
    assert scene.spans == [("allreduce.a: filling", 100, 101)]


def test_parts_that_are_too_short_to_see_are_left_out(scene: RecordedScene) -> None:
    seconds = SHORTEST_SECONDS / 2
    began = scene.account.begin_fill()
    scene.step(seconds, seconds, 2, seconds)
    scene.account.end_fill("allreduce.a", began + 3 * seconds)
    assert [name for name, *_ in scene.spans] == ["steps: step 1"]


def test_a_timeline_that_is_stopped_gets_no_more_spans(scene: RecordedScene) -> None:
    began = scene.account.begin_fill()
    scene.account.record(None)
    scene.step(1, 1)
    scene.account.end_fill("allreduce.a", began)
    assert (scene.spans, scene.account.begin_fill()) == ([], 0)
