"""Random trainings by several ranks come to what one process comes to that has all their batches.

Every program is refused by all ranks alike or by none; what may be refused is listed in EXPECTED.
"""

import os
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.worker_runtime.random_trainings.player import ELSEWHERE, SUPERSEDED, Outcome, expect, play
from tests.worker_runtime.random_trainings.programs import Program, programs
from tests.worker_runtime.ranks import RankPool

PROGRAMS = int(os.environ.get("HVDRUN_SOAK_TRAININGS", "200"))
TOLERANCE = 1e-12  # relative to the largest parameter
# What the one process says of an operation, and what the ranks may say: all of them the same.
EXPECTED = {
    f"UserError: {SUPERSEDED}": r"SupersededError: .*",
    f"UserError: {ELSEWHERE}": r"UserError: in the closure|HorovodInternalError: .*UserError: in the closure.*",
}
SETTINGS = settings(
    max_examples=PROGRAMS, database=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
)


def compare(program: Program, expected: Outcome, outcomes: list[Outcome]) -> None:
    """Raise AssertionError unless every rank has done what one process does."""
    for number, operation in enumerate(program.operations):
        wanted = expected.failures.get(number)
        pattern = EXPECTED.get(wanted, re.escape(wanted)) if wanted else None
        told = [outcome.failures.get(number) for outcome in outcomes]
        where = f"operation {number}, {operation}"
        if pattern is None:
            assert told == [None] * program.size, f"{where} failed"
        else:
            assert all(text and re.fullmatch(pattern, text) for text in told), f"{where} gave {told}, not {wanted!r}"
        right = expected.parameters[number]
        for rank, outcome in enumerate(outcomes):
            got = outcome.parameters[number]
            is_right = torch.allclose(got, right, rtol=0.0, atol=TOLERANCE * float(right.abs().max()), equal_nan=True)
            assert is_right, f"{where}, rank {rank}:\ngot {got.tolist()}\nnot {right.tolist()}"


@SETTINGS
@given(program=programs())
def test_ranks_train_as_one_process_with_all_their_batches(ranks: RankPool, program: Program) -> None:
    compare(program, expect(program), ranks.run(play, program, size=program.size))
