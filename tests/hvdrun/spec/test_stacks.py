"""The place of a stack is the innermost code of the user's program."""

from pathlib import Path

import pytest

import worker_runtime
from hvdrun.spec.stacks import Frame, Stack, WorkerStack, decode_stacks, encode_stacks

RUNTIME = Path(worker_runtime.__file__).parent / "engine" / "engine.py"
MAIN = Frame("/home/a/train.py", 9, "main", "load()")
LOAD = Frame("/home/a/data/load.py", 3, "load", "q.get()")
QUEUE = Frame("/usr/lib/python3.11/queue.py", 171, "get")
DATALOADER = Frame("/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py", 5, "__next__")
SELECT = Frame("/usr/lib64/python3.13/selectors.py", 4, "select")
COMPILED = Frame("<string>", 39, "_ones")
HERE = Frame(str(RUNTIME), 5, "wait")
INSTALLED = Frame("/opt/venv/lib/python3.12/site-packages/worker_runtime/engine/engine.py", 5, "wait")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ((QUEUE, LOAD, MAIN), LOAD),
        ((QUEUE, DATALOADER, MAIN), MAIN),
        ((HERE, MAIN), MAIN),
        ((INSTALLED, MAIN), MAIN),
        ((QUEUE, DATALOADER, SELECT), DATALOADER),
        ((QUEUE, SELECT), QUEUE),
        ((COMPILED, MAIN), MAIN),
        ((QUEUE, COMPILED), COMPILED),
        ((), None),
    ],
)
def test_the_place_of_a_stack_is_the_program_s_innermost_frame_if_it_has_one(
    frames: tuple[Frame, ...], place: Frame | None
) -> None:
    assert Stack(1, frames).place == place


@pytest.mark.parametrize(
    ("frames", "is_in_runtime"),
    [((SELECT, HERE, MAIN), True), ((INSTALLED, MAIN), True), ((QUEUE, LOAD, HERE), False), ((SELECT,), False)],
)
def test_a_program_waits_in_a_call_of_hvdrun(frames: tuple[Frame, ...], is_in_runtime: bool) -> None:
    assert Stack(1, frames).is_in_runtime is is_in_runtime


def test_a_stack_is_shown_by_its_place_or_its_obstacle() -> None:
    assert str(Stack(1, (QUEUE, LOAD, MAIN))) == "load.py:3 in load: q.get()"
    assert str(Stack(1, (QUEUE,))) == "queue.py:171 in get"
    assert str(Stack(1, obstacle="it has ended")) == "it has ended"


def test_a_long_line_is_cut() -> None:
    assert len(str(Frame("a.py", 1, "f", "x" * 1000))) < 120


def test_stacks_travel_unchanged() -> None:
    stacks = (WorkerStack(0, 1, Stack(7, (QUEUE, LOAD))), WorkerStack(1, 2, Stack(8, obstacle="it is stopped")))
    assert decode_stacks(encode_stacks(stacks)) == stacks
