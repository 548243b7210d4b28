"""Parameters of which each rank has another part are refused: an average or a broadcast would mix the parts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


def make_part() -> torch.nn.Linear:
    """A model as FSDP makes it: the ranks have the whole together."""
    model = torch.nn.Linear(2, 1, bias=False)
    mark: Any = model.weight
    mark._is_flat_param = True  # as FSDP marks it
    return model


def make_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(make_part().parameters(), lr=1)


USES: dict[str, Callable[[], object]] = {
    "DistributedOptimizer": lambda: hvd.DistributedOptimizer(make_optimizer()),
    "prepare": lambda: hvd.prepare(model := make_part(), torch.optim.SGD(model.parameters())),
    "broadcast_parameters": lambda: hvd.broadcast_parameters(make_part().named_parameters(), 0),
    "broadcast_optimizer_state": lambda: hvd.broadcast_optimizer_state(make_optimizer(), 0),
    "TorchState": lambda: hvd.elastic.TorchState(optimizer=make_optimizer()).sync(),
}


@pytest.mark.parametrize("use", USES)
def test_a_parameter_that_lies_on_several_ranks_is_refused(ranks: RankPool, use: str) -> None:
    def body() -> str:
        with pytest.raises(ValueError, match=r"torch\.distributed divides or copies a FlatParameter among") as raised:
            USES[use]()
        return str(raised.value)

    one, other = ranks.run(body)
    assert one == other


def test_one_rank_has_all_parts(ranks: RankPool) -> None:
    def body() -> bool:
        return isinstance(hvd.DistributedOptimizer(make_optimizer()), torch.optim.SGD)

    assert ranks.run(body, size=1) == [True]


def test_the_ranks_of_a_process_set_have_the_same_part(ranks: RankPool) -> None:
    def body() -> list[float]:
        pair = hvd.add_process_set([0, 1])
        model = make_part()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), process_set=pair)
        if hvd.rank() in pair.ranks:
            hvd.broadcast_parameters(model.named_parameters(), 0, process_set=pair)
        before = model.weight.detach().clone()
        (model.weight.sum() * hvd.rank()).backward()
        optimizer.step()
        return (before - model.weight.detach()).round(decimals=4).flatten().tolist()

    first, second, outside = ranks.run(body, size=3)
    assert (first, second, outside) == ([0.5, 0.5], [0.5, 0.5], [2.0, 2.0])
