"""`Engine.agree_on_members`: the ranks that are left, by commit rounds that are no steps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from worker_runtime.engine.engine import Engine
from worker_runtime.engine.in_flight import Steps
from worker_runtime.errors import HorovodInternalError, StepRevokedError


def agree(*rounds: tuple[int, ...] | Exception) -> Steps:
    """The counts of steps after an agreement whose commit rounds have these members, or raise these errors."""
    steps, answers = Steps(0, 3), iter(rounds)
    steps.note_completed_step(0, (0, 1, 2))

    def complete_step(_: object) -> None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        steps.note_completed_step(0, answer)

    engine = SimpleNamespace(steps=steps, find_members=lambda *_: None, complete_step=complete_step)
    try:
        Engine.agree_on_members(cast("Any", engine))
    except HorovodInternalError:
        assert any(type(each) is HorovodInternalError for each in rounds)
    return steps


@pytest.mark.parametrize(
    "rounds",
    [
        ((0, 1, 2), (0, 2)),
        (StepRevokedError(), (0, 1, 2), StepRevokedError(), (0, 2)),
        ((0, 2), HorovodInternalError("the job does not continue")),
    ],
    ids=["a loss before", "losses meanwhile", "an end meanwhile"],
)
def test_the_members_are_those_of_the_last_round_and_no_step_is_counted(
    rounds: tuple[tuple[int, ...] | Exception, ...],
) -> None:
    steps = agree(*rounds)
    assert (steps.members, steps.completed, steps.has_stepped) == ((0, 2), (1, (0, 1, 2)), False)
