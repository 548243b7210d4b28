"""A network of several workers normalises as one of the whole batch does."""

import copy

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch.autograd.sync_batch_norms import SyncNormalize
from worker_runtime.torch.sync_batch_norm import SyncBatchNorm

pytestmark = pytest.mark.devices


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("counts", [(1, 4), (0, 5), (3, 2)], ids=str)
@pytest.mark.parametrize("options", [{}, {"affine": False, "momentum": None}], ids=["default", "plain"])
def test_training_is_that_of_the_whole_batch(
    ranks: RankPool, shape: tuple[int, ...], counts: tuple[int, int], options: dict[str, object]
) -> None:
    def body() -> object:
        torch.manual_seed(3)
        ours, reference = SyncBatchNorm(3, **options).double(), torch.nn.BatchNorm1d(3, **options).double()
        reference._check_input_dim = lambda _: None  # of any number of dimensions
        begin = 0 if hvd.rank() == 0 else counts[0]
        own = slice(begin, begin + counts[hvd.rank()])
        agreements = []
        for _ in range(3):
            whole = (torch.randn(5, *shape[1:], dtype=torch.float64) * 3 + 1000).requires_grad_()
            mine = whole.detach()[own].requires_grad_()
            weights = torch.randn(5, *shape[1:], dtype=torch.float64)
            expected, found = reference(whole), ours(mine)
            (expected * weights).sum().backward()
            (found * weights[own]).sum().backward()
            agreements += [torch.allclose(found, expected[own]), torch.allclose(mine.grad, whole.grad[own])]
        agreements += [torch.allclose(value, reference.state_dict()[name]) for name, value in ours.state_dict().items()]
        for mine, whole in zip(ours.parameters(), reference.parameters(), strict=True):
            agreements.append(torch.allclose(hvd.allreduce(mine.grad, op=hvd.Sum), whole.grad))
        x = torch.ones(1, *shape[1:], dtype=torch.float64)
        return all([*agreements, torch.allclose(ours.eval()(x), reference.eval()(x))])

    assert ranks.run(body) == [True, True]


def test_ranks_do_not_meet_in_evaluation_unless_there_are_no_running_statistics(ranks: RankPool) -> None:
    def body() -> object:
        alone = hvd.rank() == 1 or SyncBatchNorm(2).eval()(torch.ones(3, 2)).shape == (3, 2)
        norm = SyncBatchNorm(1, track_running_stats=False).eval()
        return alone, norm(torch.tensor([[float(hvd.rank())]])).sign().item()

    assert ranks.run(body) == [(True, -1.0), (True, 1.0)]


def test_statistics_far_from_zero_are_as_precise_as_the_dtype(ranks: RankPool) -> None:
    def body() -> object:
        torch.manual_seed(hvd.rank())
        x = torch.rand(64, 2, 1000, device="cpu") + 10_000
        norm = SyncBatchNorm(2, momentum=1.0, device="cpu")
        norm(x)
        whole = hvd.allgather(x).double()
        mean, variance = whole.mean((0, 2)), whole.var((0, 2))
        return torch.equal(norm.running_mean, mean.float()), torch.allclose(norm.running_var, variance.float(), 1e-6, 0)

    assert ranks.run(body) == [(True, True)] * 2


def test_several_norms_work_together_in_a_set(ranks: RankPool) -> None:
    """Horovod's operations have fixed names and are of all ranks."""

    def body() -> object:
        some = hvd.add_process_set([0, 2])
        if not some.included():
            return None
        norms = copy.deepcopy(torch.nn.Sequential(*(SyncBatchNorm(1, process_set=some) for _ in range(3))))
        x = torch.tensor([[float(hvd.rank())]], requires_grad=True)
        result = norms(x)
        result.sum().backward()
        return round(result.item(), 2), norms[0].running_mean.item(), x.grad.abs().item() < 1e-3

    assert ranks.run(body, size=3) == [(-1.0, pytest.approx(0.1), True), None, (1.0, pytest.approx(0.1), True)]


def test_on_one_rank_the_norm_is_torchs(ranks: RankPool) -> None:
    def body() -> object:
        x = torch.randn(4, 2)
        ours, reference = SyncBatchNorm(2), torch.nn.BatchNorm1d(2)
        same = torch.equal(ours(x), reference(x))
        return same, torch.equal(ours.running_var, reference.running_var), int(ours.num_batches_tracked)

    assert ranks.run(body, size=1) == [(True, True, 1)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_result_and_gradient_have_the_dtype_of_the_input_and_halves_are_counted_in_single_precision(
    ranks: RankPool, dtype: torch.dtype
) -> None:
    step = 4 * torch.finfo(dtype).eps  # from 4.0 to the next number

    def body() -> object:
        x = torch.full((300, 1), 4.0 + step * hvd.rank(), dtype=dtype, requires_grad=True)
        norm = SyncBatchNorm(1, momentum=None)
        result = norm(x)
        result.sum().backward()
        return result.dtype == x.grad.dtype == dtype, norm.running_mean.item()

    assert ranks.run(body) == [(True, torch.tensor(4.0 + step / 2).item())] * 2


@pytest.mark.parametrize(("shape", "message"), [((3,), "at least 2D"), ((3, 5), "expected 2 channels")])
def test_inputs_of_other_shapes_are_refused_on_all_ranks(ranks: RankPool, shape: tuple[int, ...], message: str) -> None:
    def body() -> None:
        with pytest.raises((ValueError, hvd.HorovodInternalError), match=message):
            SyncBatchNorm(2)(torch.ones(shape if hvd.rank() == 0 else (3, 2)))
        hvd.barrier()  # the rank that leaves is named instead

    ranks.run(body, size=1)
    ranks.run(body)


@pytest.mark.parametrize("affine", [True, False])
def test_an_activation_in_place_may_follow(ranks: RankPool, *, affine: bool) -> None:
    def body() -> object:
        x = torch.tensor([[2.0 * hvd.rank() - 1.0]], requires_grad=True)
        result = torch.relu_(SyncBatchNorm(1, eps=1.0, affine=affine)(x))
        (result * 2).sum().backward()
        return x.grad.item()

    x = torch.tensor([[-1.0], [1.0]], requires_grad=True)
    (torch.relu(torch.nn.BatchNorm1d(1, eps=1.0)(x)) * 2).sum().backward()
    assert ranks.run(body) == pytest.approx(x.grad.flatten().tolist())


def test_fewer_than_two_values_on_all_ranks_together_are_refused(ranks: RankPool) -> None:
    def body() -> None:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            SyncBatchNorm(2)(torch.ones(hvd.rank(), 2))
        with pytest.raises(ValueError, match="the batches of all ranks are empty"):
            SyncBatchNorm(2)(torch.ones(0, 2))

    ranks.run(body)


def test_arguments_stand_in_torchs_order() -> None:
    norm = SyncBatchNorm(3, 1e-3, 0.2, False, False)  # noqa: FBT003 - torch's order
    assert (norm.num_features, norm.eps, norm.momentum) == (3, 1e-3, 0.2)
    assert (norm.affine, norm.track_running_stats) == (False, False)
    assert isinstance(norm, torch.nn.modules.batchnorm._BatchNorm)
    assert hvd.SyncBatchNorm is SyncBatchNorm
    assert issubclass(SyncNormalize, torch.autograd.Function)


def test_the_error_for_other_channels_says_how_many_each_rank_has(ranks: RankPool) -> None:
    def body() -> str:
        channels = 3 + hvd.rank()
        with pytest.raises(hvd.HorovodInternalError) as caught:
            SyncBatchNorm(channels)(torch.randn(4, channels))
        SyncBatchNorm(3)(torch.randn(4, 3))
        return str(caught.value)

    for text in ranks.run(body):
        assert "has '3 channels of float32' on rank 0 and '4 channels of float32' on rank 1" in text
