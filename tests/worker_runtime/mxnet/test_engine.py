"""What the engine is asked beyond its Python API."""

import mxnet as mx
import pytest

from worker_runtime.mxnet.arrays import view_for_reading
from worker_runtime.mxnet.engine import await_writable, find_address


def read_late(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Enqueue what takes the engine a while and ends with the values of `array`, read last."""
    matrix = mx.nd.ones((700, 700))
    for _ in range(8):
        matrix = mx.nd.dot(matrix, matrix) * 0
    return array + matrix[0, 0]


@pytest.mark.parametrize("count", [1, 5])
def test_what_still_reads_one_of_the_arrays_is_waited_for(count: int) -> None:
    arrays = [mx.nd.ones(3, ctx=mx.cpu(index % 2)) for index in range(count)]
    mx.nd.waitall()
    late = read_late(arrays[-1].as_in_context(mx.cpu(0)) if count > 1 else arrays[-1])
    late = [read_late(array) for array in arrays if array.context == mx.cpu(0)] + [late]
    await_writable(arrays)
    for array in arrays:
        view_for_reading(array).fill_(7)
    assert [array.asnumpy().tolist() for array in late] == [[1, 1, 1]] * len(late)
    assert [array.asnumpy().tolist() for array in arrays] == [[7, 7, 7]] * count


def test_no_arrays_are_not_waited_for() -> None:
    await_writable([])


def test_an_array_lies_where_its_view_does() -> None:
    array = mx.nd.ones((2, 3))
    array.wait_to_read()
    assert find_address(array) == view_for_reading(array).data_ptr()
    assert find_address(array[1:]) == view_for_reading(array).data_ptr() + 12
