"""Adasum: what is combined is by how much each rank's optimizer has moved its parameters."""

import numpy as np
import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

STEPS = 4


def combine(vectors: list[np.ndarray]) -> np.ndarray:
    """Adasum of any number of vectors, by its definition."""
    vectors = [vector.astype(np.float64) for vector in vectors]
    power = 1
    while power * 2 <= len(vectors):
        power *= 2
    for surplus in range(power, len(vectors)):
        vectors[surplus - power] = combine_pair(vectors[surplus - power], vectors[surplus])
    distance = 1
    while distance < power:
        for first in range(0, power, 2 * distance):
            vectors[first] = combine_pair(vectors[first], vectors[first + distance])
        distance *= 2
    return vectors[0]


def combine_pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * of_a) if of_a > 0 else 1) * a + (1 - dot / (2 * of_b) if of_b > 0 else 1) * b


def make_gradient(step: int, rank: int) -> torch.Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(10 * step + rank), dtype=torch.float64)


def simulate(size: int) -> np.ndarray:
    """The same training with NumPy: SGD with momentum on each rank, from common parameters."""
    parameter = np.ones((2, 3))
    momenta = [np.zeros((2, 3)) for _ in range(size)]
    for step in range(STEPS):
        moved = []
        for rank in range(size):
            momenta[rank] = 0.9 * momenta[rank] + make_gradient(step, rank).numpy()
            moved.append(-0.1 * momenta[rank])
        parameter = parameter + combine(moved)
    return parameter


def train(size: int, *, uses_closure: bool, **settings: object) -> np.ndarray:
    parameter = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    plain = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum, **settings) if size > 1 else plain
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
    return parameter.detach().numpy()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("uses_closure", [False, True])
def test_steps_are_combined_by_adasum(ranks: RankPool, size: int, *, uses_closure: bool) -> None:
    replicas = ranks.run(lambda: train(hvd.size(), uses_closure=uses_closure), size=size)
    for replica in replicas:
        np.testing.assert_array_equal(replica, replicas[0])
        np.testing.assert_allclose(replica, simulate(size), rtol=1e-12)


def test_movements_may_be_compressed(ranks: RankPool) -> None:
    replicas = ranks.run(lambda: train(hvd.size(), uses_closure=False, compression=hvd.Compression.fp16))
    for replica in replicas:
        np.testing.assert_array_equal(replica, replicas[0])
        np.testing.assert_allclose(replica, simulate(2), rtol=5e-3)


def test_parameters_without_gradient_follow_the_others(ranks: RankPool) -> None:
    def body() -> object:
        parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Adasum)
        parameters[hvd.rank()].sum().backward()
        optimizer.step()
        return [parameter.item() for parameter in parameters]

    assert ranks.run(body) == [[-1.0, -1.0, 0.0]] * 2


def test_a_gradient_scaler_skips_on_all_ranks_or_none(ranks: RankPool) -> None:
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


def test_what_has_no_meaning_is_refused_or_does_nothing(ranks: RankPool) -> None:
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
