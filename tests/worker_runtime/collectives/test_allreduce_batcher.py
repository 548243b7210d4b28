"""Small allreduces packed and unpacked together give what each gives by itself, bit by bit."""

import numpy as np
import pytest
import torch

from tests.rendezvous.counting import count_steps
from worker_runtime.collectives.allreduce import BATCHED_BYTES, Allreduce, AllreduceBatcher
from worker_runtime.collectives.combination import SUM, Combination
from worker_runtime.coordination.operation import Members
from worker_runtime.coordination.ordering.requests import Reduction, Release

MEMBERS = Members(0, (0, 1, 2), 0)
LAYOUTS = {
    "row": lambda x: x,
    "a number": lambda x: x[0].clone(),
    "table": lambda x: x.view(2, 3),
    "transposed": lambda x: x.view(2, 3).t(),
    "strided": lambda x: torch.stack([x, x], 1)[:, 0],
    "needs a gradient": lambda x: x.requires_grad_() if x.is_floating_point() else x,
}
HOWS = [
    SUM,
    Combination(Reduction.AVERAGE),
    Combination(Reduction.AVERAGE, 3.0, 0.7),
    Combination(Reduction.SUM, 0.3, 1.0),
    Combination(Reduction.MAX),
]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int16, torch.uint8]


def make_tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    return [layout((torch.arange(6) * 7 + number).to(dtype)) for number, layout in enumerate(LAYOUTS.values())]


def make_operations(tensors: list[torch.Tensor], how: Combination, *, in_place: bool) -> list[Allreduce]:
    return [
        Allreduce([tensor], how, MEMBERS, f"allreduce.{number}", [tensor] if in_place else None)
        for number, tensor in enumerate(tensors)
    ]


def find_batcher(operations: list[Allreduce]) -> AllreduceBatcher:
    (batcher,) = {operation.batcher for operation in operations}
    assert isinstance(batcher, AllreduceBatcher)
    return batcher


def combine(operation: Allreduce, payload: bytes | memoryview) -> bytes:
    """What the sequencer answers when all three ranks have sent the same payload."""
    numbers = np.frombuffer(payload, operation.request.signature.payload_dtype)
    if operation.request.signature.reduction is Reduction.MAX:
        return numbers.tobytes()
    return (numbers + numbers + numbers).tobytes()


def finish_each(operations: list[Allreduce]) -> list[torch.Tensor]:
    results = []
    for operation in operations:
        release = Release(0, operation.request, MEMBERS.ranks)
        (result,) = operation.finish(release, memoryview(combine(operation, operation.payload)))
        results.append(result)
    return results


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
def test_batched_operations_give_the_results_of_single_operations(
    how: Combination, dtype: torch.dtype, *, in_place: bool
) -> None:
    tensors = make_tensors(dtype)
    operations = make_operations(tensors, how, in_place=in_place)
    batcher = find_batcher(operations)
    payloads = batcher.pack(operations)
    assert [bytes(payload) for payload in payloads] == [bytes(operation.payload) for operation in operations]
    answers = b"".join(combine(*each) for each in zip(operations, payloads, strict=True))
    results = [result for (result,) in batcher.unpack(operations, memoryview(answers))]
    expected = finish_each(make_operations(make_tensors(dtype), how, in_place=in_place))
    for result, other, tensor in zip(results, expected, tensors, strict=True):
        assert (result.dtype, result.shape) == (dtype, tensor.shape)
        assert torch.equal(result, other)
        assert (result is tensor) if in_place else (result.is_contiguous() and not result.requires_grad)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool], ids=str)
def test_tensors_that_travel_in_another_dtype_are_batched_too(dtype: torch.dtype) -> None:
    how = Combination(Reduction.MAX) if dtype == torch.bool else SUM
    operations = make_operations([torch.tensor([1, 0]).to(dtype), torch.tensor([[2]]).to(dtype)], how, in_place=True)
    batcher = find_batcher(operations)
    payloads = batcher.pack(operations)
    assert [bytes(payload) for payload in payloads] == [bytes(operation.payload) for operation in operations]
    batcher.unpack(operations, memoryview(b"".join(payloads)))
    assert [operation.tensors[0].tolist() for operation in operations] == (
        [[True, False], [[True]]] if dtype == torch.bool else [[1, 0], [[2]]]
    )


def test_lazily_conjugated_and_negated_tensors_are_packed_by_value() -> None:
    tensors = [torch.tensor([1 + 2j]).conj(), torch.tensor([3 + 4j])]
    operations = make_operations(tensors, SUM, in_place=False)
    packed = b"".join(find_batcher(operations).pack(operations))
    assert np.frombuffer(packed, "complex64").tolist() == [1 - 2j, 3 + 4j]
    tensors = [torch.tensor([1 + 2j]).conj().imag, torch.tensor([5.0])]
    assert tensors[0].is_neg()
    operations = make_operations(tensors, SUM, in_place=False)
    packed = b"".join(find_batcher(operations).pack(operations))
    assert np.frombuffer(packed, "float32").tolist() == [-2, 5]


def test_tensors_of_inference_mode_are_packed_by_other_threads() -> None:
    with torch.inference_mode():
        tensors = [torch.ones(2), torch.ones(2, 2)[:, 0]]
    operations = make_operations(tensors, SUM, in_place=False)
    assert b"".join(find_batcher(operations).pack(operations)) == np.ones(4, "float32").tobytes()


@pytest.mark.parametrize("shape", [(2, 2), (4,)], ids=["table", "rows only"])
def test_a_result_does_not_keep_the_message_or_its_neighbours_alive(shape: tuple[int, ...]) -> None:
    operations = make_operations([torch.ones(2), torch.ones(shape)], SUM, in_place=False)
    payload = memoryview(np.ones(6, "float32").tobytes())
    for (result,) in find_batcher(operations).unpack(operations, payload):
        assert result.untyped_storage().nbytes() == result.numel() * 4
        assert result._base is None


def test_large_tensors_and_groups_are_not_batched() -> None:
    large = torch.ones(BATCHED_BYTES // 4 + 1)
    assert Allreduce([large], SUM, MEMBERS, "allreduce.x").batcher is None
    assert Allreduce([torch.ones(1), torch.ones(1)], SUM, MEMBERS, "allreduce.x").batcher is None
    assert Allreduce([torch.ones(1)], SUM, Members(0, (0,), 0), "allreduce.x").batcher is None


def test_another_way_to_combine_is_another_bundle() -> None:
    x = torch.ones(1)
    batchers = {
        Allreduce([tensor], how, among, "allreduce.x", into).batcher
        for tensor in (x, x.double())
        for how in (SUM, Combination(Reduction.MIN))
        for among in (MEMBERS, Members(0, (0, 1), 0))
        for into in (None, [tensor])
    }
    assert len(batchers) == 16


def test_results_in_new_tensors_are_made_by_one_call_of_torch() -> None:
    def count(number: int) -> int:
        tensors = [torch.ones(4) for _ in range(number)]
        operations = make_operations(tensors, SUM, in_place=False)
        batcher, payload = find_batcher(operations), memoryview(bytes(16 * number))
        return count_steps(lambda: batcher.unpack(operations, payload))

    assert (count(200) - count(100)) / 100 <= 11  # a copy of each would take more than 20
