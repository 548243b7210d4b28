"""Statistics of all ranks' batches, and the gradients of what is normalised by them."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.calls import begin_call
from worker_runtime.torch.autograd.sync_batch_norms import SyncNormalize, gather_statistics

SHAPES = [(5, 3), (2, 3, 4), (2, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("counts", [(1, 4), (0, 5), (3, 2)], ids=str)
def test_statistics_and_gradients_are_those_of_one_batch(
    ranks: RankPool, shape: tuple[int, ...], counts: tuple[int, int]
) -> None:
    def body() -> object:
        torch.manual_seed(1)
        whole = torch.randn(5, *shape[1:], dtype=torch.float64) * 3 + 1000
        weights = torch.randn_like(whole)
        begin = 0 if hvd.rank() == 0 else counts[0]
        own = slice(begin, begin + counts[hvd.rank()])
        x = whole[own].clone().requires_grad_()
        call = begin_call("test", None)
        statistics = gather_statistics(call, x)
        (SyncNormalize.apply(x, statistics, 1e-5, call) * weights[own]).sum().backward()
        whole.requires_grad_()
        expected = torch.nn.functional.batch_norm(whole, None, None, training=True)
        (expected * weights).sum().backward()
        rows = whole.detach().transpose(0, 1).flatten(1)
        return (
            statistics.count == rows.shape[1],
            torch.allclose(statistics.mean, rows.mean(1)),
            torch.allclose(statistics.variance, rows.var(1, unbiased=False)),
            torch.allclose(x.grad, whole.grad[own]),
        )

    assert ranks.run(body) == [(True,) * 4] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_counted_in_single_precision(ranks: RankPool, dtype: torch.dtype) -> None:
    def body() -> object:
        x = torch.full((300, 1), 4.0, dtype=dtype, requires_grad=True)
        call = begin_call("test", None)
        statistics = gather_statistics(call, x)
        SyncNormalize.apply(x, statistics, 1e-5, call).sum().backward()
        return statistics.mean.dtype == torch.float32, statistics.mean.item(), statistics.count, x.grad.dtype == dtype

    assert ranks.run(body) == [(True, 4.0, 600, True)] * 2


def test_batches_that_are_all_empty_are_an_error_on_all_ranks(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="the batches of all ranks are empty"):
            gather_statistics(begin_call("test", None), torch.ones(0, 3))

    ranks.run(body)
