"""Random trainings by several ranks come to what one process comes to that has all their batches.

Every operation is refused by all ranks in the same words, or by none; what may be refused is listed here. Hypothesis
prints how to repeat a failure; `--hypothesis-seed` repeats a run. `make soak` plays many (HVDRUN_SOAK_TRAININGS).
"""

import os
import re
import shutil
from itertools import chain

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.worker_runtime.random_trainings.model import DTYPES
from tests.worker_runtime.random_trainings.outcome import ELSEWHERE, NO_SKIP, SUPERSEDED, Outcome
from tests.worker_runtime.random_trainings.player import expect, play
from tests.worker_runtime.random_trainings.programs import (
    ALL,
    AMID,
    BLOCKS,
    GIVEN,
    NORMS,
    WAYS,
    Backward,
    Clear,
    Closure,
    Freeze,
    Operation,
    Program,
    Step,
    Wrap,
    Write,
    programs,
)
from tests.worker_runtime.ranks import RankPool

PROGRAMS = int(os.environ.get("HVDRUN_SOAK_TRAININGS", "200"))
IS_SOAK = "HVDRUN_SOAK_TRAININGS" in os.environ
COMPILED = 20 if IS_SOAK else 1  # by inductor
TOLERANCE = 1e-12  # relative to the largest parameter
QUASI_NEWTON = 1e3  # LBFGS divides by differences of gradients, in which a rounding counts for more
UNSTEADY = 64.0  # how many times the rounding of a norm's dtype; what is wrong is as large as the step itself
# What the one process says of an operation, and what the ranks say.
EXPECTED = {
    f"RefusedError: {SUPERSEDED}": r"SupersededError: .*",
    f"RefusedError: {NO_SKIP}": r"AssertionError: skip_synchronize\(\) has no meaning with op=Adasum, .*",
    f"UserError: {ELSEWHERE}": r"UserError: in the closure"
    r"|OperationRefusedError: .* failed on rank \d before anything was sent: .*UserError: in the closure",
}
# What all ranks may say of an operation, in the same words, that one process takes.
REFUSED = (
    "ChangedGradientError: .*",  # the model has zeroed in place what is being reduced
    "SupersededError: .*",  # a parameter was frozen when the newer optimizer was made
)
SETTINGS = settings(database=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False)
USES = (frozenset(BLOCKS),) * 2
EACH_STEP: tuple[Operation, ...] = (Clear(None), Backward(1, USES), Step(0))
PAIR = (Wrap("momentum", BLOCKS["hidden"]), Wrap("AdamW", BLOCKS["skip"]))  # a generator, and its judge
RECOVERIES = {
    f"the job recovers {place}": (Wrap(op="Sum"), Backward(0, USES, is_scaled=True), *amid)
    for place, amid in AMID.items()
}
# What is played in each run; Hypothesis has found most of it: it made the ranks part, or wait for each other.
STORIES: dict[str, tuple[Operation, ...]] = {
    **RECOVERIES,
    "the scaler skips a step": (Wrap(), Backward(0, USES, True, 0), Step(0, "scaler"), *EACH_STEP),  # noqa: FBT003 - the field is_scaled; the table stays narrow
    "only one rank has gradients after synchronize()": (
        *(Wrap(), Step(0, "synchronize"), Backward(9, (frozenset(), frozenset(BLOCKS)), is_scaled=True)),
        Step(0, "scaler"),
    ),
    "what was synchronized is dropped by the model": (
        *(Wrap(), Backward(0, USES, is_scaled=True), Step(0, "synchronize"), Clear(None)),
        *(Backward(1, USES, is_scaled=True, infinite=0), Step(0, "scaler")),
    ),
    "another optimizer takes over": (Wrap(), *EACH_STEP * 3, Wrap(), Clear(None), Backward(1, USES), Step(1)),
    "the model drops what was to be averaged": (Wrap(), *EACH_STEP * 3, Backward(2, USES), Clear(None), Step(0)),
    "the model zeroes in place what was to be averaged": (
        *(Wrap(groups=2), *EACH_STEP * 3, Backward(2, USES), Clear(None, to_none=False), Step(0), *EACH_STEP),
    ),
    "an optimizer drops it, and keeps zeros": (
        *(Wrap(), *EACH_STEP * 3, Clear(0, to_none=False), Backward(2, USES), Clear(0, to_none=False)),
        *(Backward(1, USES), Step(0)),
    ),
    "a closure fails on one rank": (Wrap(), Closure(0, 0, USES, frozenset({0})), *EACH_STEP),
    "a parameter is unfrozen before that": (
        *(Wrap(), Freeze("skip"), *EACH_STEP * 3, Freeze("skip")),
        *(Closure(0, 0, USES, frozenset({1})), *EACH_STEP),
    ),
    "a gradient is written by hand after a closure, and was synchronized before it": (
        *(Wrap(), Backward(0, USES), Step(0, "synchronize"), Closure(0, 0, USES), Write("weight", 0)),
        Step(0, "clip and scaler"),
    ),
    "passes are added up, and clipped": (
        Wrap("AdamW", passes=2),
        *(Clear(0, to_none=False), Backward(1, USES), Backward(2, USES), Step(0, "synchronize and skip")) * 4,
    ),
    **{
        f"LBFGS decides by a {gives} loss": (
            Wrap("LBFGS"),
            *(Closure(0, batch, USES, gives=gives) for batch in range(3)),
        )
        for gives in GIVEN[:3]
    },
    "steps are combined by Adasum": (
        *(Wrap("momentum", op="Adasum"), *EACH_STEP, Backward(2, USES, is_scaled=True), Step(0, "clip and scaler")),
        *(Backward(3, USES, True, 1), Step(0, "scaler"), Clear(None), *EACH_STEP),  # noqa: FBT003 - the field is_scaled; the table stays narrow
    ),
    "closures": (Wrap("momentum"), *(Closure(0, batch, USES) for batch in range(4))),
    **{
        f"an adversarial pair, cleared by the {whose}, {rounds} to 1": (
            *PAIR,
            *(
                *(Clear(of_judge), Backward(1, (frozenset({"skip"}),) * 2), Step(1)) * rounds,
                *(Clear(of_generator), Backward(2, USES), Step(0)),
            )
            * 4,
        )
        for whose, of_judge, of_generator in (("optimizers", 1, 0), ("model", None, None))
        for rounds in (1, 4)
    },
}


def find_refused(outcomes: list[Outcome]) -> list[int]:
    """The operations that all ranks have refused in the same words, which are of a listed kind."""
    return [
        number
        for number, text in outcomes[0].failures.items()
        if any(re.fullmatch(pattern, text) for pattern in REFUSED)
        and all(outcome.failures.get(number) == text for outcome in outcomes)
    ]


def compare(program: Program, expected: Outcome, outcomes: list[Outcome]) -> None:
    """Raise AssertionError unless every rank has done what one process does."""
    refused = find_refused(outcomes)
    bounds = find_bounds(program, expected, outcomes[0].parameters)
    for number, operation in enumerate(program.operations):
        wanted = expected.failures.get(number)
        texts = [outcome.failures.get(number) for outcome in outcomes]
        where = f"operation {number}, {operation}"
        if wanted is None:
            assert texts == [None] * program.size, f"{where} failed: {texts}"
        elif number not in refused:
            pattern = EXPECTED.get(wanted, re.escape(wanted))
            assert all(text and re.fullmatch(pattern, text) for text in texts), f"{where} gave {texts}, not {wanted!r}"
        right = expected.parameters[number]
        for rank, outcome in enumerate(outcomes):
            got = outcome.parameters[number]
            is_right = torch.allclose(got, right, rtol=0.0, atol=bounds[number], equal_nan=True)
            assert is_right, (
                f"{where}, rank {rank}, but for {bounds[number]}:\ngot {got.tolist()}\nnot {right.tolist()}"
            )
        losses = [loss for outcome in outcomes for loss in outcome.losses.get(number, ())]
        bound = UNSTEADY * find_rounding(program) if program.norm else TOLERANCE
        assert losses == pytest.approx(expected.losses.get(number, []), rel=bound, abs=bound, nan_ok=True), where


def find_bounds(program: Program, expected: Outcome, followed: list[torch.Tensor]) -> list[float]:
    """How far the parameters may be off after each operation.

    A norm rounds, and what is rounded is some of the terms whose sum is a gradient; the largest of all steps so far
    stands for them. Each operation of the one process begins with the ranks' parameters then, so that no error grows.
    """
    bounds, greatest, before = [], 0.0, followed[0]
    has_lbfgs = any(isinstance(each, Wrap) and each.kind == "LBFGS" for each in program.operations)
    tolerance = TOLERANCE * (QUASI_NEWTON if has_lbfgs else 1.0)
    for right, got in zip(expected.parameters, followed, strict=True):
        greatest = max(greatest, find_largest(right - before))
        exact = tolerance * find_largest(right)
        bounds.append(exact + UNSTEADY * find_rounding(program) * greatest if program.norm else exact)
        before = got
    return bounds


def find_largest(values: torch.Tensor) -> float:
    """The largest amount of the values that are finite: a training may diverge."""
    return max(values[values.isfinite()].abs().tolist(), default=0.0)


def find_rounding(program: Program) -> float:
    """By how much the dtype of a norm rounds 1.0."""
    return torch.finfo(DTYPES[program.norm]).eps / 2


def check(program: Program, ranks: RankPool) -> None:
    """Play a program, and compare."""
    outcomes = ranks.run(play, program, size=program.size, limit_seconds=300.0)  # a compiler may be at work
    followed = outcomes[0].parameters if program.norm else ()
    compare(program, expect(program, find_refused(outcomes), followed), outcomes)


@pytest.mark.parametrize("story", STORIES)
def test_ranks_train_in_a_story_as_one_process_with_all_their_batches(ranks: RankPool, story: str) -> None:
    check(Program(2, 1, clears_by_model=False, operations=STORIES[story], is_elastic=story in RECOVERIES), ranks)


def test_ranks_train_after_failed_steps_as_one_process(ranks: RankPool) -> None:
    """AdamW cannot step with a gradient that is wider than its parameter."""
    uneven = Backward(0, (frozenset({"hidden"}), frozenset()), is_scaled=True)
    twice = (Step(0, "scaler"), Step(0, "synchronize"), Step(0, "scaler"))
    last = (Backward(0, USES, is_scaled=True), Step(0, "clip and scaler"), Clear(ALL), uneven)
    operations = (Wrap("AdamW"), *twice, *last, Step(0, "clip and scaler"))
    check(Program(2, 1, clears_by_model=False, operations=operations, widened=frozenset({"weight"})), ranks)


@pytest.mark.parametrize("dtype", NORMS)
def test_ranks_with_a_norm_in_a_compiled_model_train_as_one_process(ranks: RankPool, dtype: str) -> None:
    steps = [(Clear(None), Backward(batch, USES, way="aot_eager"), Step(0)) for batch in range(3)]
    check(Program(2, 1, clears_by_model=False, operations=(Wrap("momentum"), *chain(*steps)), norm=dtype), ranks)


@pytest.mark.timeout(0 if IS_SOAK else 600)  # on a busy machine
@settings(SETTINGS, max_examples=PROGRAMS)
@given(program=programs(norm_ways=WAYS[: 1 + IS_SOAK]))
def test_ranks_train_as_one_process_with_all_their_batches(ranks: RankPool, program: Program) -> None:
    check(program, ranks)


@pytest.mark.nightly
@pytest.mark.timeout(0 if IS_SOAK else 600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's inductor needs a compiler: apt-get install g++")
@settings(SETTINGS, max_examples=COMPILED)
@given(program=programs(ways=WAYS[2:], norm_ways=WAYS[2:]))
def test_ranks_with_a_model_compiled_by_inductor_train_as_one_process(ranks: RankPool, program: Program) -> None:
    check(program, ranks)
