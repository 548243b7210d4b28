"""Every form of every collective under Horovod's arguments; what the collectives compute is tested with them."""

import sys
from pathlib import Path

import pytest
import torch

import worker_runtime
import worker_runtime.torch as hvd
from tests.worker_runtime.operations import FORMS, EveryForm, call
from tests.worker_runtime.ranks import RankPool

pytestmark = pytest.mark.devices

PACKAGE = str(Path(worker_runtime.__file__).parent)
COMPRESSED = ("allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter")


class Halving:
    """A compressor of a program's own: an object with methods."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
        """Half of it."""
        return tensor / 2, "halved"

    def decompress(self, tensor: torch.Tensor, context: str) -> torch.Tensor:
        """Twice of it."""
        assert context == "halved"
        return tensor * 2


class TestForms(EveryForm):
    """The forms of each collective in worker_runtime.torch."""

    hvd = hvd
    make = staticmethod(torch.tensor)
    read = staticmethod(torch.Tensor.tolist)


@pytest.mark.parametrize("form", COMPRESSED)
def test_a_compressor_of_any_kind_is_applied(ranks: RankPool, form: str) -> None:
    compressors = hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16, Halving()

    def body() -> object:
        results = [
            call(hvd, form, torch.tensor([1.0, 3.0 + hvd.rank()]), op=hvd.Sum, compression=compressor)
            for compressor in compressors
        ]
        return [(each.dtype == torch.float32, each.tolist()) for each in results]

    whole = [2.0, 7.0]
    parts = [whole, whole] if "allreduce" in form else [whole[:1], whole[1:]]
    assert ranks.run(body) == [[(True, part)] * len(compressors) for part in parts]


def test_a_grouped_call_returns_a_list_and_its_handle_a_tuple(ranks: RankPool) -> None:
    def body() -> object:
        grouped = [form for form in FORMS if form.startswith("grouped_")]
        results = [getattr(hvd, form)((torch.ones(2), torch.ones(1, 3))) for form in grouped]
        return [
            type(hvd.synchronize(result)) is tuple if "_async" in form else type(result) is list
            for form, result in zip(grouped, results, strict=True)
        ]

    assert ranks.run(body, size=1) == [[True] * 8]


@pytest.mark.parametrize("kind", ["list", "tensor"])
def test_an_alltoall_with_splits_gives_rows_and_counts_and_without_them_rows_alone(ranks: RankPool, kind: str) -> None:
    def body() -> object:
        x = torch.arange(3) + 10 * hvd.rank()
        splits = [1, 2] if hvd.rank() == 0 else [0, 3]
        rows, counts = hvd.alltoall(x, splits if kind == "list" else torch.tensor(splits, dtype=torch.int32))
        same = hvd.synchronize(hvd.alltoall_async(x, splits))
        assert [each.tolist() for each in same] == [rows.tolist(), counts.tolist()]
        single = hvd.alltoall(x[:2])
        even = hvd.synchronize(hvd.alltoall_async(x[:2]))  # Horovod's handle gives both always
        assert [each.tolist() for each in even] == [single.tolist(), [1, 1]]
        return rows.tolist(), counts.tolist(), counts.dtype == torch.int32, single.tolist()

    assert ranks.run(body) == [([0], [1, 0], True, [0, 10]), ([1, 2, 10, 11, 12], [2, 3], True, [1, 11])]


def test_a_gradient_that_backward_has_not_made_yet_is_named(ranks: RankPool) -> None:
    def body() -> None:
        with pytest.raises(ValueError, match=r"not None, which p\.grad is before backward\(\)"):
            hvd.broadcast(torch.nn.Parameter(torch.ones(2)).grad, 0)

    ranks.run(body)


def test_a_burst_that_is_answered_while_it_is_waited_for_ends_once(ranks: RankPool) -> None:
    def body() -> object:
        results = []
        for reduce in (hvd.allreduce_async, hvd.allreduce_async_) * 50:
            handles = [reduce(torch.tensor([1.0 + hvd.rank()]), name=str(number)) for number in range(3)]
            results += [hvd.synchronize(handle).item() for handle in handles]
        return results

    assert ranks.run(body) == [[1.5] * 300] * 2


def test_an_allreduce_passes_through_few_files(ranks: RankPool) -> None:
    def body() -> object:
        x, files = torch.ones(4), set()
        for _ in range(3):
            hvd.allreduce(x, name="x")
        hvd.barrier()
        sys.settrace(lambda frame, *_: files.add(frame.f_code.co_filename))
        hvd.allreduce(x, name="x")
        sys.settrace(None)
        return x.is_cuda, sorted(file for file in files if file.startswith(PACKAGE))

    for is_cuda, files in ranks.run(body):
        assert f"{PACKAGE}/torch/ops.py" in files
        assert len(files) <= (18 if is_cuda else 15), files  # a GPU's have a stream and a work of NCCL
