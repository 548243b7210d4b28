"""Adasum: what is combined is by how much each rank's optimizer has moved its parameters."""

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.operations import combine_by_adasum
from tests.worker_runtime.ranks import RankPool

pytestmark = pytest.mark.devices

STEPS = 4


def make_gradient(step: int, rank: int) -> torch.Tensor:
    return torch.randn(6, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)


def simulate() -> list[float]:
    """The same training of two ranks in one process: SGD with momentum on each, from common parameters."""
    parameter = torch.ones(6, dtype=torch.float64)
    momenta = torch.zeros(2, 6, dtype=torch.float64)
    for step in range(STEPS):
        momenta = 0.9 * momenta + torch.stack([make_gradient(step, rank) for rank in range(2)])
        parameter = parameter + torch.tensor(combine_by_adasum(*(-0.1 * momenta).tolist()), dtype=torch.float64)
    return parameter.tolist()


def train(*, uses_closure: bool, **settings: object) -> list[float]:
    parameter = torch.nn.Parameter(torch.ones(6, dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, **settings)
    for step in range(STEPS):

        def compute(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (parameter * make_gradient(step, hvd.rank())).sum()
            loss.backward()
            return loss

        if uses_closure:
            assert optimizer.step(compute).item() != 0
        else:
            compute()
            optimizer.synchronize()
            optimizer.step()
    return parameter.tolist()


@pytest.mark.parametrize("uses_closure", [False, True])
@pytest.mark.parametrize(("compression", "tolerance"), [("none", 1e-12), ("fp16", 5e-3)])
def test_steps_are_combined_by_adasum(
    ranks: RankPool, compression: str, tolerance: float, *, uses_closure: bool
) -> None:
    def body() -> object:
        return train(uses_closure=uses_closure, compression=getattr(hvd.Compression, compression))

    first, second = ranks.run(body)
    assert first == second
    assert first == pytest.approx(simulate(), rel=tolerance)


def test_parameters_without_gradient_follow_the_others(ranks: RankPool) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Adasum)
        parameters[hvd.rank()].sum().backward()
        optimizer.step()
        return [parameter.item() for parameter in parameters]

    assert ranks.run(body) == [[-1.0, -1.0, 0.0]] * 2


def test_a_gradient_scaler_skips_a_step_on_all_ranks_or_on_no_rank(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=hvd.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        values = []
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale((parameter * (torch.inf if step == 1 and hvd.rank() == 1 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            values.append(parameter.item())
        return values, scaler.get_scale()

    assert ranks.run(body) == [([-1.0, -1.0, -2.0], 2.0)] * 2


def test_an_option_without_meaning_is_refused_or_does_nothing(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        plain = torch.optim.SGD([parameter], lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum, backward_passes_per_step=2)
        with pytest.raises(AssertionError, match="no meaning with op=Adasum"), optimizer.skip_synchronize():
            pass
        with pytest.raises(NotImplementedError, match="global process set"):
            hvd.DistributedOptimizer(plain, op=hvd.Adasum, process_set=hvd.ProcessSet([0]))
        optimizer.set_backward_passes_per_step(3)
        assert optimizer._handles == {}
        optimizer.load_state_dict(optimizer.state_dict())
        return optimizer.backward_passes_per_step

    assert ranks.run(body) == [3] * 2


def test_lbfgs_does_not_move_a_frozen_parameter_by_its_history(ranks: RankPool) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
        optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(parameters, lr=0.1, max_iter=3), op=hvd.Adasum)
        target = torch.arange(3.0, dtype=torch.float64) + hvd.rank()

        def compute() -> torch.Tensor:
            optimizer.zero_grad()
            trained = torch.stack([parameter for parameter in parameters if parameter.requires_grad])
            loss = ((trained - target) ** 2).sum()
            loss.backward()
            return loss

        optimizer.step(compute)
        parameters[0].requires_grad = False
        optimizer.step(compute)  # with the gradient that it had
        before = parameters[0].tolist()
        optimizer.step(compute)
        assert parameters[0].tolist() == before
        return [parameter.tolist() for parameter in parameters]

    first, second = ranks.run(body)
    assert first == second
