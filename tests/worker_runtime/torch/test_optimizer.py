"""The distributed optimizer trains as one process with the whole batch would; and what may be asked of it."""

import textwrap
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.torch.training import check_replicas, train

pytestmark = pytest.mark.devices


IMPORTING_INITIALIZES = hvd.is_initialized()  # before any test has run


class Shifted:
    """A compressor of the user's."""

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Another number."""
        return tensor + 1, 1.0

    def decompress(self, tensor: torch.Tensor, context: float) -> torch.Tensor:
        """The number itself."""
        return tensor - context


@pytest.mark.parametrize(("optimizer", "size"), [("SGD", 2), ("AdamW", 3), ("LBFGS", 2), ("LBFGS", 3)])
def test_several_workers_train_as_one_with_the_whole_batch(ranks: RankPool, optimizer: str, size: int) -> None:
    replicas = ranks.run(lambda: train(optimizer, hvd.rank(), hvd.size()), size=size)
    check_replicas(replicas, train(optimizer))


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"gradient_predivide_factor": 4.0}, 1e-8),
        ({"groups": np.int64(2)}, 1e-8),
        ({"groups": 0}, 1e-8),
        ({"sparse_as_dense": True}, 1e-8),
        pytest.param({"compression": Shifted()}, 1e-8, id="a compressor of the user's"),
        ({"compression": hvd.Compression.fp16}, 2e-3),
        ({"compression": hvd.Compression.bf16}, 2e-2),
    ],
    ids=str,
)
def test_settings_of_speed_change_no_number_beyond_their_precision(
    ranks: RankPool, settings: dict[str, object], tolerance: float
) -> None:
    replicas = ranks.run(lambda: train("SGD", hvd.rank(), hvd.size(), **settings))
    check_replicas(replicas, train("SGD"), tolerance)


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpointed_models_are_trained_alike(ranks: RankPool, *, is_reentrant: bool) -> None:
    def prepare(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda batch: checkpoint(model, batch.requires_grad_(), use_reentrant=is_reentrant)

    check_replicas(ranks.run(lambda: train("SGD", hvd.rank(), hvd.size(), prepare=prepare)), train("SGD"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1.5),
        ({"op": hvd.Sum}, 3.0),
        ({"op": hvd.Min}, 1.0),
        ({"op": hvd.Max}, 2.0),
        ({"op": hvd.Product}, 2.0),
        ({"gradient_predivide_factor": 2.0}, 1.5),
        ({"backward_passes_per_step": 2}, 3.0),
    ],
    ids=str,
)
def test_the_settings_decide_the_gradient(ranks: RankPool, settings: dict[str, float], expected: float) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), **settings)
        values = []
        for _ in range(4):
            optimizer.zero_grad()
            for _ in range(int(settings.get("backward_passes_per_step", 1))):
                (parameter * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
            values.append(parameter.grad.item())
        return values

    assert ranks.run(body) == [[expected] * 4] * 2


def test_parameters_added_or_unfrozen_after_wrapping_are_averaged_too(ranks: RankPool) -> None:
    def body() -> object:
        early, frozen, added = (torch.nn.Parameter(torch.zeros(1)) for _ in range(3))
        frozen.requires_grad_(requires_grad=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([early, frozen], lr=1.0))
        for _ in range(3):
            optimizer.zero_grad()
            early.sum().backward()
            optimizer.step()
        frozen.requires_grad_()
        optimizer.add_param_group({"params": [added], "lr": 2.0})
        for _ in range(4):
            optimizer.zero_grad()
            ((early + frozen + added) * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
        return [parameter.item() for parameter in (early, frozen, added)]

    assert ranks.run(body) == [[-9.0, -6.0, -12.0]] * 2


@pytest.mark.parametrize("warm_up", [1, 5])
def test_an_optimizer_of_a_removed_set_raises_and_harms_no_other_set(ranks: RankPool, warm_up: int) -> None:
    def body() -> float:
        parameter = torch.nn.Parameter(torch.zeros(1))
        pair = hvd.add_process_set([0, 1])
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), process_set=pair)

        def step() -> None:
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()

        for _ in range(warm_up):
            step()
        hvd.remove_process_set(pair)
        for others in ([], [1, 2]):  # the second set gets the number of the first
            other = hvd.add_process_set(others) if others else None
            if hvd.rank() != 2:
                with pytest.raises(ValueError, match="process set 1 does not exist"):
                    step()
            if other is not None:
                hvd.remove_process_set(other)
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body, size=3) == [3.0] * 3


def test_ranks_outside_the_process_set_step_by_themselves(ranks: RankPool) -> None:
    def body() -> object:
        pair = hvd.add_process_set([0, 2])
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), process_set=pair)
        for _ in range(4):
            optimizer.zero_grad()
            (parameter * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
        return parameter.item()

    assert ranks.run(body, size=3) == [-8.0, -8.0, -8.0]


def make_plain() -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)


def test_the_old_name_of_groups_warns(ranks: RankPool) -> None:
    def body() -> None:
        with pytest.warns(DeprecationWarning, match="num_groups is deprecated"):
            hvd.DistributedOptimizer(make_plain(), num_groups=1)

    ranks.run(body, size=1)


def test_a_wrapping_before_init_raises() -> None:
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.DistributedOptimizer(make_plain())


def test_importing_initializes_nothing() -> None:
    assert not IMPORTING_INITIALIZES


def test_the_docstrings_example_of_clipping_works(ranks: RankPool) -> None:
    def body() -> object:
        lines = hvd.DistributedOptimizer.__doc__.splitlines()
        begin = next(index for index, line in enumerate(lines) if "loss.backward()" in line)
        end = lines.index("", begin)
        example = textwrap.dedent("\n".join(lines[begin:end]))  # Python 3.13 strips what all lines are indented by
        assert "clip_grad_norm_" in example
        model = torch.nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        norms = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.eye(3)).sum() * (hvd.rank() + 1)
            before = model.weight.detach().clone()
            exec(example, {"torch": torch, "model": model, "optimizer": optimizer, "loss": loss})  # noqa: S102 - our own
            norms.append((model.weight - before).norm().item())
        return norms

    for norms in ranks.run(body):
        assert norms == pytest.approx([1.0] * 4, abs=1e-4)
