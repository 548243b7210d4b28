"""A gradient on several contexts."""

import mxnet as mx
import pytest

from worker_runtime.mxnet.contexts import gather, scatter


def make_parts(stype: str = "default") -> list[mx.nd.NDArray]:
    return [mx.nd.array([[1, 0], [0, 0]], ctx=mx.cpu(index)).tostype(stype) * (index + 1) for index in range(3)]


@pytest.mark.parametrize("is_numpy", [False, True])
def test_parts_are_summed_and_are_alike_afterwards(*, is_numpy: bool) -> None:
    parts = [part.as_np_ndarray() if is_numpy else part for part in make_parts()]
    total = gather(parts)
    assert total is parts[0]
    total *= 2
    scatter(total, parts)
    assert [part.asnumpy().tolist() for part in parts] == [[[12, 0], [0, 0]]] * 3
    assert [part.context for part in parts] == [mx.cpu(0), mx.cpu(1), mx.cpu(2)]


def test_sparse_parts_stay_sparse() -> None:
    parts = make_parts("row_sparse")
    total = gather(parts)
    assert (total.stype, total.asnumpy().tolist()) == ("default", [[6, 0], [0, 0]])
    scatter(total + 1, parts)
    assert [part.stype for part in parts] == ["row_sparse"] * 3
    assert [part.asnumpy().tolist() for part in parts] == [[[7, 1], [1, 1]]] * 3
