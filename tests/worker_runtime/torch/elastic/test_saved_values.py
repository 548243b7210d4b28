"""What a state saves of values and optimizers, as they were; and what it refuses."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool


class Counts(NamedTuple):
    """A named tuple of what can change."""

    seen: list[int]
    sums: torch.Tensor


def test_contents_of_a_named_tuple_are_restored(ranks: RankPool) -> None:
    def body() -> object:
        state = hvd.elastic.TorchState(counts=Counts([1], torch.ones(1)))
        state.counts.seen.append(2)
        state.counts.sums.add_(1)
        state.restore()
        return type(state.counts).__name__, state.counts.seen, state.counts.sums.item()

    assert ranks.run(body, size=1) == [("Counts", [1], 1.0)]


class Metric:
    """A metric of ignite: it has attributes of all names."""

    count = 0

    def state_dict(self) -> dict[str, int]:
        """Return the count."""
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Load the count."""
        self.count = state_dict["count"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: None


def test_an_object_that_has_attributes_of_all_names_is_restored_by_its_own(ranks: RankPool) -> None:
    def body() -> object:
        state = hvd.elastic.TorchState(metric=Metric())
        state.metric.count = 3
        state.commit()
        state.metric.count = 5
        state.restore()
        return state.metric.count

    assert ranks.run(body, size=1) == [3]


class Settings(dict[str, Any]):
    """A dict whose keys are attributes, as programs make it: another attribute is a KeyError."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize(
    "value", [Settings(lr=1), torch.nn.Linear, {"model": torch.nn.Linear}], ids=lambda value: type(value).__name__
)
def test_a_value_with_unusual_attributes_is_restored(ranks: RankPool, value: object) -> None:
    def body() -> bool:
        state = hvd.elastic.TorchState(value=value)
        state.value = None
        state.restore()
        return state.value == value

    assert ranks.run(body, size=1) == [True]


@pytest.mark.parametrize("error", [RuntimeError, AttributeError])
def test_an_error_of_an_objects_state_dict_is_shown(error: type[Exception]) -> None:
    class Unready:
        """An object that has no state yet."""

        @property
        def state_dict(self) -> Any:
            raise error("not ready")

        def load_state_dict(self, state: Any) -> None:
            pass

    with pytest.raises(error, match="not ready"):
        hvd.elastic.TorchState(averages=Unready())
    with pytest.raises(ValueError, match="the state's averages is a list with an object of the class Unready inside"):
        hvd.elastic.TorchState(averages=[Unready()])


GENERATORS: list[tuple[object, Callable[[Any], float]]] = [
    (torch.Generator().manual_seed(1), lambda numbers: torch.rand(1, generator=numbers).item()),
    (random.Random(1), lambda numbers: numbers.random()),  # noqa: S311 - no secret
    (np.random.default_rng(1), lambda numbers: numbers.random()),
    (np.random.RandomState(1), lambda numbers: numbers.rand()),
]


@pytest.mark.parametrize(("numbers", "draw"), GENERATORS, ids=lambda each: type(each).__name__)
def test_a_restored_generator_draws_the_same_numbers(numbers: object, draw: Callable[[Any], float]) -> None:
    state = hvd.elastic.TorchState(own=[numbers])
    first = draw(state.own[0])
    for _ in range(2):
        state.restore()
        assert draw(state.own[0]) == first


@pytest.mark.parametrize("inside", [False, True])
def test_a_tensor_that_is_trained_is_refused_by_name(inside: bool) -> None:
    weight = torch.zeros(1, requires_grad=True)
    with pytest.raises(ValueError, match="the state's weight is or has a tensor that requires gradients"):
        hvd.elastic.TorchState(weight={"first": weight} if inside else weight)
    hvd.elastic.TorchState(loss=[weight + 1])


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """The default process group is that of two ranks, of which the other one is not there."""
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("kind", ["model", "optimizer", "value"])
def test_a_state_that_lies_on_several_ranks_is_refused(kind: str) -> None:
    model = fully_shard(torch.nn.Linear(2, 2), mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    kept: dict[str, Any] = {"model": model}
    if kind == "value":
        kept = {"weights": [each.detach() for each in model.parameters()]}
    if kind == "optimizer":
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        kept = {"optimizer": optimizer}
    with pytest.raises(ValueError, match=r"a state cannot keep a DTensor, which torch\.distributed divides or copies"):
        hvd.elastic.TorchState(**kept)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("kind", ["FSDP", "fully_shard"])
def test_an_optimizer_of_parts_is_refused_before_its_first_step(kind: str) -> None:
    model: torch.nn.Module = torch.nn.Linear(2, 2)
    if kind == "fully_shard":
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(ValueError, match=r"a state cannot keep a (FlatParameter|DTensor), which torch\.distributed "):
        hvd.elastic.TorchState(optimizer=optimizer)
    other = hvd.elastic.TorchState(optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]))
    with pytest.raises(ValueError, match="a state cannot keep a "):
        other.optimizer = optimizer


@pytest.mark.parametrize("is_distributed", [False, True])
def test_a_restored_optimizer_state_keeps_its_dtypes(ranks: RankPool, is_distributed: bool) -> None:
    def body() -> object:
        model = torch.nn.Linear(2, 1, dtype=torch.bfloat16)
        optimizer: torch.optim.Optimizer = torch.optim.NAdam(model.parameters())
        if is_distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        state = hvd.elastic.TorchState(model, optimizer)
        before = optimizer.state_dict()["state"][0]["mu_product"].clone()
        optimizer.step()
        state.restore()
        after = optimizer.state_dict()["state"][0]["mu_product"]
        return after.dtype == before.dtype, torch.equal(after, before)

    assert ranks.run(body, size=1) == [(True, True)]


@pytest.mark.parametrize("form", [list, tuple, dict])
def test_tensors_inside_of_a_restored_state_keep_their_dtypes(ranks: RankPool, form: type) -> None:
    def body() -> object:
        model = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters())
        inside = {"left": torch.full((2,), 0.1), "right": [torch.full((2,), 0.2)]}
        optimizer.state[model.weight]["factors"] = inside if form is dict else form(inside.values())
        state = hvd.elastic.TorchState(model, optimizer)
        state.restore()
        restored = optimizer.state[model.weight]["factors"]
        left, right = restored.values() if form is dict else restored
        return type(restored) is form, torch.equal(left, inside["left"]), torch.equal(right[0], inside["right"][0])

    assert ranks.run(body, size=1) == [(True, True, True)]


@pytest.mark.parametrize("way", ["restore", "sync", "checkpoint"])
def test_a_learning_rate_that_several_groups_share_stays_shared(ranks: RankPool, way: str, tmp_path: Path) -> None:
    def body() -> object:
        groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
        rate = torch.tensor(1.0)  # of the program, too
        optimizer = torch.optim.SGD(groups, lr=rate)
        state = hvd.elastic.TorchState(optimizer=optimizer)
        if way == "restore":
            state.restore()
        elif way == "sync":
            state.sync()
        else:
            state.save(tmp_path)
            state.load(tmp_path)
        rate.mul_(0.5)
        return [group["lr"].item() for group in optimizer.param_groups]

    assert ranks.run(body) == [[0.5, 0.5]] * 2


def test_learning_rates_that_are_shared_no_longer_are_saved_apart(ranks: RankPool) -> None:
    def body() -> object:
        groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
        optimizer = torch.optim.SGD(groups, lr=torch.tensor(1.0))
        state = hvd.elastic.TorchState(optimizer=optimizer)
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = torch.tensor(float(number))
        state.save()
        state.restore()
        return [group["lr"].item() for group in optimizer.param_groups]

    assert ranks.run(body, size=1) == [[0.0, 1.0]]
