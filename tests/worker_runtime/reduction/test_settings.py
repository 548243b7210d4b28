"""How gradients are combined is the same on all ranks."""

import pytest
import torch

from tests.worker_runtime.reduction.gradients import make_parameters, make_reducer
from tests.worker_runtime.threads import ThreadEngine, World
from worker_runtime.collectives.combination import Combination
from worker_runtime.coordination.ordering.requests import Reduction
from worker_runtime.errors import HorovodInternalError
from worker_runtime.reduction import Settings


def test_ranks_with_other_settings_are_reported(world: World) -> None:
    def body(engine: ThreadEngine) -> str:
        reducer = make_reducer(
            make_parameters(1), engine, how=Combination(Reduction.AVERAGE if engine.rank else Reduction.SUM)
        )
        with pytest.raises(HorovodInternalError) as caught:
            reducer.synchronize()
        return str(caught.value)

    text, same = world.run(body)
    assert text == same
    assert "average" in text
    assert "sum" in text


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (Combination(), (0.25, 1.0)),
        (Combination(Reduction.AVERAGE, 0.5, 2.0), (0.5, 0.5)),
        (Combination(Reduction.SUM), (1.0, 1.0)),
        (Combination(Reduction.MAX), (1.0, 1.0)),
    ],
)
def test_an_average_is_made_before_the_sum_unless_the_user_wants_factors(
    how: Combination, expected: tuple[float, float]
) -> None:
    assert Settings(how=how).find_factors(4) == expected


def test_only_floating_point_gradients_travel_as_another_dtype() -> None:
    settings = Settings(wire_dtype=torch.float16)
    dtypes = (torch.float32, torch.bfloat16, torch.complex64)
    assert [settings.choose_dtype(dtype) for dtype in dtypes] == [torch.float16, torch.float16, torch.complex64]
    assert Settings().choose_dtype(torch.float32) == torch.float32


@pytest.mark.parametrize(
    ("settings", "gathers"),
    [
        (Settings(), True),
        (Settings(how=Combination(Reduction.SUM)), True),
        (Settings(how=Combination(Reduction.MIN)), False),
        (Settings(sparse_as_dense=True), False),
    ],
)
def test_only_sums_are_made_of_gathered_elements(settings: Settings, *, gathers: bool) -> None:
    assert settings.gathers_sparse is gathers


def test_a_description_says_what_is_not_as_usual() -> None:
    assert Settings().describe() == "average"
    special = Settings(how=Combination(Reduction.AVERAGE, 0.5, 2.0), wire_dtype=torch.float16, sparse_as_dense=True)
    assert special.describe() == "average, factors 0.5 and 2, as float16, sparse as dense"
