"""Gradients that are not finite: which rank and parameter are named, when, and what is no alarm."""

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from tests.worker_runtime.reduction.gradients import begin, make_parameters, make_reducer
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import NotFiniteError, WrongArgumentError
from worker_runtime.reduction import GradientReducer, finite
from worker_runtime.reduction.adasum import AdasumReducer
from worker_runtime.reduction.finite import FiniteCheck, make_finite_check
from worker_runtime.torch.compression import Compression

Parameters = list[torch.Tensor]


def step(
    reducer: GradientReducer, parameters: Parameters, bad: Mapping[int, float] | None = None, scale: Any = None
) -> None:
    """One step whose gradients are 1, but for one value in those of `bad`."""
    for parameter in parameters:
        parameter.grad = None
    factors = [torch.ones_like(parameter) for parameter in parameters]
    for place, value in (bad or {}).items():
        factors[place].view(-1)[-1] = value
    sum((parameter * factor).sum() for parameter, factor in zip(parameters, factors, strict=True)).backward()
    reducer.synchronize()
    reducer.settle(scale)


def play(
    output: pytest.CaptureFixture[str], body: Callable[[ThreadEngine], Any], size: int = 2, *, is_elastic: bool = False
) -> list[str]:
    """The lines that all ranks print."""
    World(size, is_elastic=is_elastic).run(body)
    return output.readouterr().err.splitlines()


@pytest.mark.parametrize("way", ["packed", "copied", "in place", "float16", "compressed", "elastic", "sum"])
@pytest.mark.parametrize(("value", "kind"), [(math.nan, "NaN"), (-math.inf, "infinity")])
def test_the_rank_and_the_parameter_are_named_in_the_step_in_which_a_gradient_is_not_finite(
    way: str, value: float, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {
        "in place": {"in_place": True},
        "float16": {"wire_dtype": torch.float16},
        "compressed": {"compressor": Compression.none},
        "sum": {"how": Combination(Reduction.SUM)},
    }.get(way, {})

    def body(engine: ThreadEngine) -> None:
        parameters = make_parameters(3)
        if way == "copied":
            parameters = [torch.zeros(100, 100, requires_grad=True) for _ in range(3)]
        reducer = make_reducer(parameters, engine, finite=FiniteCheck(raises=False), **settings)
        for number in range(1, 6):
            step(reducer, parameters, {1: value} if (number, engine.rank) in ((1, 1), (4, 0)) else {})

    lines = play(capsys, body, is_elastic=way == "elastic")
    expected = "hvdrun: rank {}'s gradient of p1 is not finite ({}) in step {}"
    assert lines == [expected.format(1, kind, 1), expected.format(0, kind, 4) + "; this has happened 2 times"]


@pytest.mark.parametrize("in_place", [False, True])
def test_gradients_are_looked_at_before_the_operation_that_may_change_them_is_created(
    in_place: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU the operation waits for what the stream had to do when it was created, and for nothing later."""
    notes: dict[int, list[str]] = {}

    def note(what: str) -> None:
        notes.setdefault(threading.get_ident(), []).append(what)

    begin_operation, begin_look = Allreduce.__init__, FiniteCheck.look

    def create(operation: Allreduce, tensors: Any, how: Any, among: Any, name: str, *into: Any) -> None:
        if ".bucket." in name:
            note("created")
        begin_operation(operation, tensors, how, among, name, *into)

    def look(check: FiniteCheck, *arguments: Any) -> None:
        note("looked")
        begin_look(check, *arguments)

    monkeypatch.setattr(Allreduce, "__init__", create)
    monkeypatch.setattr(FiniteCheck, "look", look)

    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 2, finite=FiniteCheck(raises=False), in_place=in_place)
        step(reducer, parameters)

    World(2).run(body)
    assert [set(zip(each[::2], each[1::2], strict=True)) for each in notes.values()] == [{("looked", "created")}] * 2


def test_of_several_gradients_the_one_nearest_to_the_loss_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 4, finite=FiniteCheck(raises=False))
        step(reducer, parameters, {0: math.nan, 2: math.inf} if engine.rank else {})
        step(reducer, parameters)

    expected = "rank 1's gradient of p2 is not finite (infinity) in step 1, and 1 more of its gradients"
    assert play(capsys, body, 4) == [f"hvdrun: {expected}; nor are gradients of rank 2, 3"]


def test_a_sparse_gradient_is_checked_over_several_passes_and_on_a_rank_that_is_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(engine: ThreadEngine) -> None:
        table = torch.nn.Embedding(5, 2, sparse=True)
        with torch.no_grad():
            table.weight.zero_()
        reducer = make_reducer([table.weight], engine, passes=2, finite=FiniteCheck(raises=False))
        for number in range(1, 5):
            table.weight.grad = None
            for part in range(2):
                is_bad = (number, part, engine.rank) == (3, 0, engine.size - 1)
                (table(torch.tensor([1, 1, engine.rank])) * (math.nan if is_bad else 1.0)).sum().backward()
            reducer.synchronize()
            reducer.settle()

    expected = "hvdrun: rank {}'s gradient of p0 is not finite (NaN) in step 3"
    assert play(capsys, body) == [expected.format(1)]
    assert play(capsys, body, 1) == [expected.format(0)]


@pytest.mark.parametrize("size", [1, 2])
def test_a_parameter_that_is_added_later_is_looked_at(capsys: pytest.CaptureFixture[str], size: int) -> None:
    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 1, finite=FiniteCheck(raises=False))
        step(reducer, parameters)
        parameters += make_parameters(1)
        for _ in range(2):
            step(reducer, parameters, {1: math.nan})

    (line, *_) = play(capsys, body, size)
    assert line.startswith("hvdrun: rank 0's gradient of p1 is not finite (NaN) in step 2")


def test_consequences_in_later_steps_get_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 1, finite=FiniteCheck(raises=False))
        step(reducer, parameters, {0: math.nan} if engine.rank else {})
        for _ in range(30):
            step(reducer, parameters, {0: math.nan})

    first, second = play(capsys, body)
    assert first == "hvdrun: rank 1's gradient of p0 is not finite (NaN) in step 1"
    assert second.endswith("in step 10; nor are gradients of rank 1; this is so in the 10 steps up to this one")


def test_an_error_is_the_same_on_all_ranks_and_training_may_continue(world: World) -> None:
    def body(engine: ThreadEngine) -> tuple[str, int]:
        reducer, parameters = begin(engine, 2, finite=FiniteCheck(raises=True))
        for number in range(3):
            step(reducer, parameters)
            with pytest.raises(NotFiniteError) as caught:
                step(reducer, parameters, {0: math.nan} if engine.rank else {})
            assert f"in step {2 * number + 2}" in str(caught.value)
        step(reducer, parameters)
        return str(caught.value), engine.asked.count("allreduce.optimizer.1.finite")

    sentence = "rank 1's gradient of p0 is not finite (NaN) in step 6; this has happened 3 times"
    assert world.run(body) == [(sentence, 7)] * 2


def test_infinities_of_a_scaled_loss_are_reported_after_the_scale_has_fallen_to_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 1, finite=FiniteCheck(raises=False))
        for scale in (math.inf, torch.tensor(8.0), 4.0, torch.tensor(2.0)):
            step(reducer, parameters, {0: math.inf}, scale)
        step(reducer, parameters, {0: math.nan} if engine.rank else {}, torch.tensor(1.0))

    why = "the gradient scaler has gone down to a scale of 1, so that is not the reason"
    assert play(capsys, body) == [f"hvdrun: rank 1's gradient of p0 is not finite (NaN) in step 5; {why}"]


def test_a_large_finite_gradient_is_no_alarm_unless_the_compression_makes_it_infinite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(engine: ThreadEngine) -> None:
        parameters = make_parameters(2)
        reducer = make_reducer(parameters, engine, finite=FiniteCheck(raises=False))
        short = make_parameters(2)
        narrow = make_reducer(short, engine, finite=FiniteCheck(raises=False), wire_dtype=torch.float16)
        for _ in range(3):
            step(reducer, parameters, {0: 3e38, 1: -3e38})
        step(narrow, short, {1: 1e6} if engine.rank else {})

    expected = "hvdrun: rank 1's gradient of p1 is not finite (too large for the compression) in step 1"
    assert play(capsys, body) == [expected]


def test_ranks_that_had_different_gradients_when_they_discarded_them_continue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 3, is_warm=True, finite=FiniteCheck(raises=False))
        used = parameters if engine.rank else parameters[-1:]
        (sum(parameter.sum() for parameter in used) * math.nan).backward()
        reducer.discard()
        reducer.settle()
        for _ in range(3):
            step(reducer, parameters)

    assert play(capsys, body) == []


def test_discarded_gradients_are_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 2, is_warm=True, finite=FiniteCheck(raises=False))
        (sum(parameter.sum() for parameter in parameters) * math.nan).backward()
        reducer.discard()
        step(reducer, parameters)

    assert play(capsys, body) == []


def test_a_bad_gradient_on_a_device_is_reported_one_step_later_with_the_right_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "_is_on_cpu", lambda _: False)
    lines: list[str] = []

    def body(engine: ThreadEngine) -> None:
        reducer, parameters = begin(engine, 3, finite=FiniteCheck(raises=False))
        step(reducer, parameters)
        step(reducer, parameters, {1: math.nan} if engine.rank else {})
        step(reducer, parameters, {2: math.inf}, torch.tensor(4.0))
        lines.extend(capsys.readouterr().err.splitlines())
        step(reducer, parameters)
        step(reducer, parameters)

    assert play(capsys, body) == []
    assert lines == ["hvdrun: rank 1's gradient of p1 is not finite (NaN) in step 2"]


def test_an_error_waits_for_the_device(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finite, "_is_on_cpu", lambda _: False)

    def body(engine: ThreadEngine) -> str:
        reducer, parameters = begin(engine, 2, finite=FiniteCheck(raises=True))
        step(reducer, parameters)
        with pytest.raises(NotFiniteError) as caught:
            step(reducer, parameters, {0: math.inf} if engine.rank else {})
        return str(caught.value)

    assert world.run(body) == ["rank 1's gradient of p0 is not finite (infinity) in step 2"] * 2


def test_adasum_looks_at_each_ranks_gradients_before_it_combines_their_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body(engine: ThreadEngine) -> None:
        (parameter,) = make_parameters(1)
        check = FiniteCheck(raises=False, waits=True)
        adasum = AdasumReducer(lambda: [("p0", parameter)], lambda: engine, lambda: 0, finite=check)

        def move() -> None:
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.0)

        for number in range(1, 4):
            parameter.grad = torch.ones(4)
            if (number, engine.rank) == (2, 1):
                parameter.grad[2] = math.nan
            adasum.step(move)

    assert play(capsys, body)[0] == "hvdrun: rank 1's gradient of p0 is not finite (NaN) in step 2"


def test_the_variable_asks_for_a_line_an_error_or_nothing() -> None:
    name = "HVD_CHECK_NAN"
    assert make_finite_check({}) is make_finite_check({name: "0"}) is None
    assert isinstance(make_finite_check({name: "1"}), FiniteCheck)
    with pytest.raises(WrongArgumentError, match=r"^HVD_CHECK_NAN='yes' is none of 1 \(print a line\), error"):
        make_finite_check({name: "yes"})
