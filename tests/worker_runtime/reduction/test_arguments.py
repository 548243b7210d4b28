"""What is no argument for a distributed optimizer or trainer is named immediately, in one sentence."""

from collections.abc import Callable

import numpy as np
import pytest

import worker_runtime.torch as hvd
from worker_runtime.reduction.settings import check_compression, read_group_count, read_predivide

TITLE = "DistributedTrainer"


@pytest.mark.parametrize(
    ("read", "given"),
    [
        *[(read_predivide, factor) for factor in (2, 0.5, np.float32(2.0), np.int64(4), -1.0)],
        *[(read_group_count, count) for count in (0, 3, np.int64(2))],
    ],
)
def test_a_factor_is_any_number_that_one_can_divide_by_and_a_number_of_groups_an_integer(
    read: Callable[[str, object], float], given: float
) -> None:
    assert read(TITLE, given) == given


@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.fp16()])
def test_a_compressor_has_both_methods(compression: object) -> None:
    check_compression(TITLE, compression)


FACTOR = (read_predivide, "gradient_predivide_factor is .*give a number")
GROUPS = (read_group_count, "num_groups is .*; give the number of groups, or 0")
COMPRESSION = (check_compression, "compression is .*; give hvd.Compression.none")


@pytest.mark.parametrize(
    ("argument", "error", "wrong"),
    [
        *[(FACTOR, ValueError, factor) for factor in (0, 0.0, float("nan"), float("inf"), 1e-310)],
        *[(FACTOR, TypeError, factor) for factor in ("2", None, [2.0])],
        (GROUPS, ValueError, -1),
        *[(GROUPS, TypeError, count) for count in ("2", 2.0, None)],
        *[(COMPRESSION, TypeError, compression) for compression in ("fp16", None, hvd.Compression)],
    ],
)
def test_other_arguments_are_refused(
    argument: tuple[Callable[[str, object], object], str], error: type[Exception], wrong: object
) -> None:
    check, message = argument
    with pytest.raises(error, match=f"^DistributedTrainer: {message}"):
        check(TITLE, wrong)
