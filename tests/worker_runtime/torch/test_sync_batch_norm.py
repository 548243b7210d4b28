"""A network of several workers normalises as one of the whole batch does."""

import copy

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_is_that_of_the_whole_batch(ranks: RankPool, affine: bool, momentum: float | None) -> None:  # noqa: FBT001 - a parameter of pytest
    def body() -> object:
        torch.manual_seed(3)
        options = {"affine": affine, "momentum": momentum, "dtype": torch.float64}
        ours, reference = hvd.SyncBatchNorm(2, **options), torch.nn.BatchNorm1d(2, **options)
        agreements = []
        for _ in range(3):
            whole = torch.randn(6, 2, 3, dtype=torch.float64)
            own = slice(0, 2) if hvd.rank() == 0 else slice(2, 6)
            expected, found = reference(whole.requires_grad_()), ours(whole[own])
            expected.square().sum().backward()
            found.square().sum().backward()
            agreements.append(torch.allclose(found, expected[own]))
        for name, value in ours.state_dict().items():
            agreements.append(torch.allclose(value, reference.state_dict()[name]))
        for mine, whole in zip(ours.parameters(), reference.parameters(), strict=True):
            agreements.append(torch.allclose(hvd.allreduce(mine.grad, op=hvd.Sum), whole.grad))
        x = torch.ones(1, 2, 3, dtype=torch.float64)
        agreements.append(torch.allclose(ours.eval()(x), reference.eval()(x)))
        return agreements

    assert all(all(agreements) for agreements in ranks.run(body))


def test_in_evaluation_ranks_do_not_meet(ranks: RankPool) -> None:
    def body() -> object:
        norm = hvd.SyncBatchNorm(2).eval()
        if hvd.rank() == 0:
            return norm(torch.ones(3, 2)).shape == (3, 2)
        return None

    assert ranks.run(body) == [True, None]


def test_without_running_statistics_they_meet_in_evaluation_too(ranks: RankPool) -> None:
    def body() -> object:
        norm = hvd.SyncBatchNorm(1, track_running_stats=False).eval()
        return norm(torch.tensor([[float(hvd.rank())]])).sign().item()

    assert ranks.run(body) == [-1.0, 1.0]


def test_a_set_of_ranks_and_several_modules_at_once(ranks: RankPool) -> None:
    """Horovod's operations have fixed names and are of all ranks."""

    def body() -> object:
        some = hvd.add_process_set([0, 2])
        if not some.included():
            return None
        norms = copy.deepcopy(torch.nn.Sequential(*(hvd.SyncBatchNorm(1, process_set=some) for _ in range(3))))
        x = torch.tensor([[float(hvd.rank())]], requires_grad=True)
        result = norms(x)
        result.sum().backward()
        return round(result.item(), 2), norms[0].running_mean.item(), x.grad.abs().item() < 1e-3

    assert ranks.run(body, size=3) == [(-1.0, pytest.approx(0.1), True), None, (1.0, pytest.approx(0.1), True)]


def test_alone_it_is_torchs(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.randn(4, 2)
        ours, reference = hvd.SyncBatchNorm(2), torch.nn.BatchNorm1d(2)
        same = torch.equal(ours(x), reference(x))
        return same, torch.equal(ours.running_var, reference.running_var), int(ours.num_batches_tracked)

    assert ranks.run(body, size=1) == [(True, True, 1)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_result_has_the_dtype_of_the_input(ranks: RankPool, dtype: torch.dtype) -> None:
    def body() -> object:
        return hvd.SyncBatchNorm(2)(torch.ones(2, 2, dtype=dtype)).dtype == dtype

    assert ranks.run(body) == [True, True]


@pytest.mark.parametrize(("shape", "message"), [((3,), "at least 2D"), ((3, 5), "expected 2 channels")])
def test_inputs_of_other_shapes_are_refused(ranks: RankPool, shape: tuple[int, ...], message: str) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match=message):
            hvd.SyncBatchNorm(2)(torch.ones(shape))

    ranks.run(body, size=1)


def test_one_value_on_all_ranks_together_has_no_variance(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            hvd.SyncBatchNorm(2)(torch.ones(hvd.rank(), 2))

    ranks.run(body)


def test_its_arguments_are_horovods() -> None:
    norm = hvd.SyncBatchNorm(3, 1e-3, 0.2, False, False)  # noqa: FBT003 - Horovod's order
    assert (norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats) == (
        3,
        1e-3,
        0.2,
        False,
        False,
    )
    assert isinstance(norm, torch.nn.modules.batchnorm._BatchNorm)


def test_ranks_with_other_channels_are_told_how_many_each_has(ranks: RankPool) -> None:
    def body() -> str:
        channels = 3 + hvd.rank()
        with pytest.raises(hvd.HorovodInternalError) as caught:
            hvd.SyncBatchNorm(channels)(torch.randn(4, channels))
        hvd.SyncBatchNorm(3)(torch.randn(4, 3))
        return str(caught.value)

    for text in ranks.run(body):
        assert "has '3 channels of float32' on rank 0 and '4 channels of float32' on rank 1" in text
