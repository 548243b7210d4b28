"""Arrays as tensors in the same memory, in the order that MXNet's engine would have kept, and on several contexts."""

import gc

import mxnet as mx
import numpy as np
import pytest
import torch

from tests.worker_runtime.mxnet.networks import begin_long, make_spoilt
from tests.worker_runtime.ranks import RankPool
from worker_runtime.mxnet.arrays import (
    DTYPES,
    await_writable,
    check_array,
    fill_parts,
    find_address,
    is_on_device,
    make_array,
    sum_parts,
    view_for_reading,
    view_for_writing,
)

CLASSES = [dtype for dtype in DTYPES if isinstance(dtype, type)]
VIEWS = [view_for_reading, view_for_writing]
CONTEXTS = [mx.cpu(0), mx.cpu(3), mx.Context("cpu_pinned", 0), mx.Context("cpu_shared", 0)]


@pytest.mark.parametrize("dtype", CLASSES, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_the_array_itself(view: object, dtype: type) -> None:
    array = mx.nd.array([[1, 2], [3, 4]], dtype=dtype)
    tensor = view(array)
    assert (tensor.dtype, tensor.tolist()) == (DTYPES[dtype], [[1, 2], [3, 4]])
    tensor += 1
    array[0, 0] = 9
    array.wait_to_read()
    assert tensor.tolist() == array.asnumpy().tolist() == [[9, 3], [4, 5]]


@pytest.mark.parametrize("dtype", CLASSES, ids=lambda dtype: dtype.__name__)
def test_an_array_of_a_tensor_is_the_tensor_itself(dtype: type) -> None:
    tensor = torch.tensor([[1, 2], [3, 4]], dtype=DTYPES[dtype])
    array = make_array(tensor, mx.nd.zeros(1))
    assert array.dtype is dtype
    tensor += 1
    array += 1
    array.wait_to_read()
    assert tensor.tolist() == array.asnumpy().tolist() == [[3, 4], [5, 6]]


@pytest.mark.parametrize("view", VIEWS)
def test_a_running_computation_is_waited_for(view: object) -> None:
    result = begin_long(mx.nd.ones(3))
    assert view(result).tolist() == [1, 1, 1]


def test_a_reader_of_an_array_is_waited_for_before_a_write() -> None:
    array = mx.nd.ones(3)
    reader = begin_long(array)
    view_for_writing(array).fill_(7)
    assert reader.asnumpy().tolist() == [1, 1, 1]
    assert array.asnumpy().tolist() == [7, 7, 7]


def test_a_computation_enqueued_afterwards_sees_the_written_values() -> None:
    array = mx.nd.zeros((200, 200))
    for value in range(1, 6):
        view_for_writing(array).fill_(value)
        assert (array * 2).asnumpy().min() == value * 2


def test_the_memory_outlives_the_array_and_the_tensor() -> None:
    array = mx.nd.ones(1000)
    view = view_for_reading(array)
    del array
    made = make_array(torch.full((1000,), 2.0), mx.nd.zeros(1))
    gc.collect()
    others = [mx.nd.zeros(1000) for _ in range(50)]
    mx.nd.waitall()
    assert view.unique().tolist() == [1]
    assert np.unique(made.asnumpy()).tolist() == [2]
    del others


@pytest.mark.parametrize("context", CONTEXTS, ids=str)
def test_contexts_are_kept(context: mx.Context) -> None:
    array = mx.nd.ones(2, ctx=context)
    tensor = view_for_writing(array)
    tensor += 1
    assert tensor.device.type == "cpu"
    assert array.asnumpy().tolist() == [2, 2]
    made = make_array(torch.ones(2), array)
    assert (made.context, made.asnumpy().tolist()) == (context, [1, 1])


def test_both_of_mxnets_kinds_of_arrays_are_served() -> None:
    array = mx.np.ones((2, 2))
    view_for_writing(array).fill_(3)
    made = make_array(torch.ones(2), array)
    assert (type(array), type(made)) == (mx.np.ndarray, mx.np.ndarray)
    assert array.asnumpy().tolist() == [[3, 3], [3, 3]]
    assert type(make_array(torch.ones(2), mx.nd.ones(1))) is mx.nd.NDArray


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)], ids=str)
def test_arrays_without_dimensions_or_elements_are_arrays_as_others(shape: tuple[int, ...]) -> None:
    with mx.util.np_shape(active=True):
        array = mx.nd.ones(shape)
    for view in VIEWS:
        assert tuple(view(array).shape) == shape
    made = make_array(torch.ones(shape), array)
    assert (made.shape, made.asnumpy().tolist()) == (shape, torch.ones(shape).tolist())


def test_a_slice_is_a_part_of_the_whole() -> None:
    array = mx.nd.arange(12).reshape((4, 3))
    tensor = view_for_writing(array[1:3])
    assert tensor.tolist() == [[3, 4, 5], [6, 7, 8]]
    tensor.zero_()
    assert array.asnumpy().sum() == 0 + 1 + 2 + 9 + 10 + 11


@pytest.mark.parametrize("view", VIEWS)
def test_arrays_that_onednn_has_laid_out_in_its_own_way_are_put_in_order(view: object) -> None:
    images, weights = mx.nd.random.uniform(shape=(2, 16, 8, 8)), mx.nd.random.uniform(shape=(32, 16, 3, 3))
    expected = weights.asnumpy()

    def convolve() -> mx.nd.NDArray:
        return mx.nd.Convolution(images, weights, kernel=(3, 3), num_filter=32, no_bias=True)

    tensor = view(convolve())
    assert np.array_equal(tensor.numpy(), convolve().asnumpy())
    tensor = view(weights)  # which inference has laid out anew
    assert np.array_equal(tensor.numpy(), expected)
    tensor.zero_()
    assert convolve().asnumpy().max() == 0


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        ([1.0], TypeError, "an array of MXNet was expected, not list"),
        (torch.ones(1), TypeError, "not Tensor"),
        (mx.nd.ones(1).astype("bool"), ValueError, r"arrays of bool are not supported; x\.astype"),
        (mx.nd.sparse.zeros("row_sparse", (2, 2)), ValueError, "storage type row_sparse"),
        (mx.nd.sparse.zeros("csr", (2, 2)), ValueError, "storage type csr"),
    ],
    ids=["list", "tensor", "bool", "row_sparse", "csr"],
)
def test_an_array_that_cannot_travel_is_refused(array: object, error: type[Exception], message: str) -> None:
    for view in (*VIEWS, check_array):
        with pytest.raises(error, match=message):
            view(array)


def test_a_context_outside_the_hosts_memory_is_a_device() -> None:
    assert [is_on_device(context) for context in (*CONTEXTS, mx.gpu(0))] == [False] * len(CONTEXTS) + [True]


@pytest.mark.parametrize("view", VIEWS)
def test_an_error_in_the_engine_is_raised_here(view: object) -> None:
    failed = make_spoilt(2) + 1
    with pytest.raises(mx.MXNetError, match="not positive definite"):
        view(failed)


def test_an_unread_error_ends_with_its_test(ranks: RankPool) -> None:
    ranks.run(lambda: mx.nd.random.normal(0, -1, (2, 2)).shape)  # which the generator remembers
    assert ranks.run(lambda: mx.nd.random.uniform(shape=(2, 2)).asnumpy().shape) == [(2, 2)] * 2


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_reader_of_one_of_several_arrays_is_waited_for(count: int) -> None:
    arrays = [mx.nd.ones(3, ctx=mx.cpu(index % 2)) for index in range(count)]
    mx.nd.waitall()
    late = [begin_long(array) for array in arrays if array.context == mx.cpu(0)]
    await_writable(arrays)
    for array in arrays:
        view_for_reading(array).fill_(7)
    assert [array.asnumpy().tolist() for array in late] == [[1, 1, 1]] * len(late)
    assert [array.asnumpy().tolist() for array in arrays] == [[7, 7, 7]] * count


def test_an_array_lies_where_its_view_does() -> None:
    array = mx.nd.ones((2, 3))
    array.wait_to_read()
    assert find_address(array) == view_for_reading(array).data_ptr()
    assert find_address(array[1:]) == view_for_reading(array).data_ptr() + 12


def make_parts(stype: str = "default") -> list[mx.nd.NDArray]:
    return [mx.nd.array([[1, 0], [0, 0]], ctx=mx.cpu(index)).tostype(stype) * (index + 1) for index in range(3)]


@pytest.mark.parametrize("is_numpy", [False, True])
def test_parts_are_summed_and_are_alike_afterwards(*, is_numpy: bool) -> None:
    parts = [part.as_np_ndarray() if is_numpy else part for part in make_parts()]
    total = sum_parts(parts)
    assert total is parts[0]
    total *= 2
    fill_parts(total, parts)
    assert [part.asnumpy().tolist() for part in parts] == [[[12, 0], [0, 0]]] * 3
    assert [part.context for part in parts] == [mx.cpu(0), mx.cpu(1), mx.cpu(2)]


def test_sparse_parts_stay_sparse() -> None:
    parts = make_parts("row_sparse")
    total = sum_parts(parts)
    assert (total.stype, total.asnumpy().tolist()) == ("default", [[6, 0], [0, 0]])
    fill_parts(total + 1, parts)
    assert [part.stype for part in parts] == ["row_sparse"] * 3
    assert [part.asnumpy().tolist() for part in parts] == [[[7, 1], [1, 1]]] * 3
