"""What the engine is asked beyond its Python API."""

import mxnet as mx
import pytest

from tests.worker_runtime.mxnet.networks import begin_long
from worker_runtime.mxnet.arrays import view_for_reading
from worker_runtime.mxnet.engine import await_writable, find_address


@pytest.mark.parametrize("count", [0, 1, 5])
def test_what_still_reads_one_of_several_arrays_is_waited_for(count: int) -> None:
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
