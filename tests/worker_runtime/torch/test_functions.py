"""Replicas become equal, and nothing else about them changes."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.torch.functions import allocate_state, outline_state
from worker_runtime.torch.loading import load_checked, load_optimizer_state

pytestmark = pytest.mark.devices

MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "AdamW in groups": lambda parameters: torch.optim.AdamW(
        [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:], "betas": (0.5, 0.6)}]
    ),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1),
}


def make_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def describe(value: object) -> object:
    """A value that compares by content."""
    match value:
        case torch.Tensor():
            return value.dtype, value.tolist()
        case dict():
            return {key: describe(item) for key, item in value.items()}
        case list() | tuple():
            return [describe(item) for item in value]
        case _:
            return value


@pytest.mark.parametrize("form", ["state_dict", "pairs", "generator", "tensors"])
@pytest.mark.parametrize("root", [0, 1])
def test_parameters_and_buffers_become_the_roots(ranks: RankPool, form: str, root: int) -> None:
    def body() -> object:
        model = make_model(hvd.rank())
        model[1].num_batches_tracked.fill_(hvd.rank())
        state = model.state_dict()
        given = {
            "state_dict": state,
            "pairs": list(state.items()),
            "generator": ((name, tensor) for name, tensor in state.items()),
            "tensors": list(state.values()),
        }
        hvd.broadcast_parameters(given[form], root_rank=root)
        return describe(dict(model.state_dict()))

    results = ranks.run(body)
    model = make_model(root)
    model[1].num_batches_tracked.fill_(root)
    assert results == [describe(dict(model.state_dict()))] * 2


@pytest.mark.parametrize("params", [torch.ones(2), "weights", 3], ids=str)
def test_arguments_that_are_no_parameters_are_refused(ranks: RankPool, params: object) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="invalid params of type"):
            hvd.broadcast_parameters(params, 0)
        for error in (ValueError, AttributeError):  # AttributeError is Horovod's
            with pytest.raises(error, match="'lr' is of type float, not a tensor"):
                hvd.broadcast_parameters({"lr": 0.1}, 0)
        with pytest.raises(ValueError, match="these names occur more than once: a, b"):
            hvd.broadcast_parameters([(name, torch.ones(1)) for name in "abcab"], 0)

    ranks.run(body, size=1)


def test_parameters_that_differ_are_named_and_the_others_do_not_stay_behind(ranks: RankPool) -> None:
    def body() -> object:
        params = {"a": torch.full((1,), float(hvd.rank())), "b": torch.ones(hvd.rank() + 1), "c": torch.ones(2)}
        with pytest.raises(hvd.HorovodInternalError, match="broadcast 'b'"):
            hvd.broadcast_parameters(params, 0)
        params["b"] = torch.full((1,), float(hvd.rank()))
        hvd.broadcast_parameters(params, 1)
        return params["a"].item(), params["b"].item()

    assert ranks.run(body) == [(0.0, 1.0)] * 2


def test_in_a_set_only_its_ranks_become_equal(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0, 2])
        parameter = torch.nn.Parameter(torch.full((1,), float(hvd.rank())))
        optimizer = torch.optim.SGD([parameter], lr=float(hvd.rank() + 1), momentum=0.5)
        optimizer.state[parameter]["momentum_buffer"] = torch.full((1,), float(hvd.rank()))
        if some.included():
            hvd.broadcast_parameters([parameter], 2, process_set=some)
            hvd.broadcast_optimizer_state(optimizer, 2, process_set=some)
        momentum = optimizer.state[parameter]["momentum_buffer"]
        return parameter.item(), optimizer.param_groups[0]["lr"], momentum.item()

    assert ranks.run(body, size=3) == [(2.0, 3.0, 2.0), (1.0, 2.0, 1.0), (2.0, 3.0, 2.0)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("newcomer", ["has no state", "has another state"])
def test_optimizer_state_and_options_become_the_roots_and_no_step_is_run(
    ranks: RankPool, name: str, newcomer: str
) -> None:
    def body() -> object:
        model = make_model(0)
        optimizer = OPTIMIZERS[name](list(model.parameters()))
        if hvd.rank() == 0 or newcomer == "has another state":
            for step in range(2 + hvd.rank()):
                take_step(model, optimizer, step)
        if hvd.rank() == 1:
            optimizer.param_groups[0]["lr"] = 9.0
        before = describe(dict(model.state_dict())), describe(optimizer.state_dict())
        wrapped = hvd.DistributedOptimizer(optimizer)
        hvd.broadcast_optimizer_state(wrapped if newcomer == "has no state" else optimizer, root_rank=0)
        return before, (describe(dict(model.state_dict())), describe(optimizer.state_dict()))

    (root_before, root_after), (other_before, other_after) = ranks.run(body)
    assert root_after == root_before
    assert other_after[0] == other_before[0]
    assert other_after[1] == root_before[1]


def test_state_keeps_its_dtype_where_torch_would_convert_it(ranks: RankPool) -> None:
    def body() -> object:
        parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        if hvd.rank() == 0:
            optimizer.state[parameter]["master"] = torch.tensor([0.1, 0.2])
        hvd.broadcast_optimizer_state(optimizer, 0)
        return describe(optimizer.state[parameter]["master"])

    assert ranks.run(body) == [describe(torch.tensor([0.1, 0.2]))] * 2


def test_state_of_sparse_gradients_becomes_the_roots(ranks: RankPool) -> None:
    """SGD keeps the momentum of an embedding's sparse gradients as a sparse tensor."""

    def body() -> object:
        model = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if hvd.rank() == 0:
            model(torch.tensor([1, 3])).sum().backward()
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        momentum = optimizer.state[model.weight]["momentum_buffer"]
        return momentum.layout, describe(momentum.to_dense())

    rows = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    assert ranks.run(body) == [(torch.sparse_coo, describe(rows))] * 2


def test_sparse_buffers_of_a_model_become_the_roots(ranks: RankPool) -> None:
    def body() -> object:
        model = make_model(hvd.rank())
        edges = torch.tensor([[0.0, 2.0], [1.0, 0.0]]) if hvd.rank() == 0 else torch.eye(2)
        model.register_buffer("edges", edges.to_sparse())
        hvd.elastic.TorchState(model=model).sync()
        return model.edges.layout, describe(model.edges.to_dense()), describe(model[0].weight)

    root, other = ranks.run(body)
    assert root == other
    assert root[:2] == (torch.sparse_coo, describe(torch.tensor([[0.0, 2.0], [1.0, 0.0]])))


def test_state_that_belongs_to_no_parameter_becomes_the_roots(ranks: RankPool) -> None:
    def body() -> object:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
        if hvd.rank() == 0:
            optimizer.state["steps"] = 3
            optimizer.state["mean"] = torch.tensor([0.1, 0.2])
            optimizer.state["scales"] = {"all": torch.tensor(4.0)}
        hvd.broadcast_optimizer_state(optimizer, 0)
        return describe(optimizer.state_dict()["state"])

    root, other = ranks.run(body)
    assert root == other
    assert len(root) == 3


def test_state_is_allocated_on_the_devices_of_the_parameters() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2, device=device)) for device in ("cpu", "meta")]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    on_meta, on_cpu = (torch.ones(3, device=device) for device in ("meta", "cpu"))
    state: dict[object, object] = {
        0: {"of a parameter": on_meta},
        "mean": on_meta,
        "count": on_cpu,
        1: {"step": on_cpu},
    }
    allocated = allocate_state(outline_state({"state": state, "param_groups": []})["state"], optimizer)
    devices = [
        allocated[0]["of a parameter"].device,
        allocated["mean"].device,
        allocated["count"].device,
        allocated[1]["step"].device,
    ]
    assert [device.type for device in devices] == ["cpu", "meta", "cpu", "cpu"]


@pytest.mark.parametrize("load", [load_optimizer_state, load_checked])
def test_options_that_are_tensors_stay_on_their_device(load: Callable[..., None]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="meta")
    groups = [{**optimizer.state_dict()["param_groups"][0], "lr": torch.tensor(0.2)}]
    load(optimizer, {"state": {}, "param_groups": groups})
    assert optimizer.param_groups[0]["lr"].device.type == "meta"


@pytest.mark.parametrize(
    "make_other",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.Adam(parameters[:1]),
        lambda parameters: torch.optim.Adam([{"params": [parameter]} for parameter in parameters]),
        lambda parameters: torch.optim.Adam([parameters[0], torch.nn.Parameter(torch.ones(2, 1))]),
    ],
    ids=["class", "parameters", "groups", "shapes"],
)
def test_optimizers_that_differ_are_refused_on_all_ranks(ranks: RankPool, make_other: MakeOptimizer) -> None:
    def body() -> None:
        parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        optimizer = make_other(parameters) if hvd.rank() else torch.optim.Adam(parameters)
        with pytest.raises(hvd.HorovodInternalError, match=r"'root rank 0, Adam of 2 parameters"):
            hvd.broadcast_optimizer_state(optimizer, 0)

    ranks.run(body)


def test_broadcasting_the_state_of_no_optimizer_fails_on_all_ranks(ranks: RankPool) -> None:
    def body() -> None:
        parameter = torch.nn.Parameter(torch.ones(2))
        wrong: Any = parameter if hvd.rank() else torch.optim.Adam([parameter])
        with pytest.raises((ValueError, hvd.HorovodInternalError), match="an optimizer was expected, not Parameter"):
            hvd.broadcast_optimizer_state(wrong, 0)

    ranks.run(body)


def test_an_optimizer_without_state_has_gradients_of_zeros_afterwards(ranks: RankPool) -> None:
    """Horovod makes them for the step by which it makes the state, and programs broadcast them."""

    def body() -> object:
        parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
        parameters[1].requires_grad_(requires_grad=False)
        parameters[2].grad = torch.ones(2)
        hvd.broadcast_optimizer_state(torch.optim.SGD(parameters, lr=1.0), root_rank=0)
        return [None if each.grad is None else hvd.broadcast(each.grad, 0).tolist() for each in parameters]

    assert ranks.run(body) == [[[0.0, 0.0], None, [1.0, 1.0]]] * 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_state_of_another_optimizer_is_refused_before_anything_has_changed(momentum: float) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    another = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
    another.step()
    optimizer = torch.optim.Adam([weight], lr=0.2)
    optimizer.step()
    with pytest.raises(ValueError, match="the state has no betas: it is that of another optimizer"):
        load_optimizer_state(optimizer, another.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert optimizer.state[weight]["step"].item() == 1


def test_a_state_of_an_older_torch_gets_the_defaults_of_its_newer_options() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=0.2)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        group["lr"] = 0.1
        del group["fused"], group["capturable"]
    load_optimizer_state(optimizer, saved)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["capturable"] is False


class Counting(torch.nn.Linear):
    """A layer whose state dict has copies, and a count."""

    count = 0

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_state_dict_post_hook(clone_all)

    def get_extra_state(self) -> torch.Tensor:
        """See `torch.nn.Module`."""
        return torch.tensor(self.count)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """See `torch.nn.Module`."""
        self.count = int(state.item())


def clone_all(_: object, state: dict[str, torch.Tensor], *__: object) -> None:
    """Put copies into a state dict."""
    state.update({name: value.clone() for name, value in state.items()})


def test_tensors_that_a_state_dict_computes_become_the_roots(ranks: RankPool) -> None:
    def body() -> object:
        torch.manual_seed(hvd.rank())
        model = Counting()
        model.count = 5 - hvd.rank()
        hvd.elastic.TorchState(model=model).sync()
        return model.count, describe(list(model.parameters()))

    root, other = ranks.run(body)
    assert root == other
    assert root[0] == 5


class Sized(torch.nn.Module):
    """A module whose buffer takes the shape of what it loads, as those of quantization-aware modules."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(size))

    def _load_from_state_dict(self, state: dict[str, torch.Tensor], prefix: str, *others: Any) -> None:
        self.scale.resize_(state[f"{prefix}scale"].shape)
        super()._load_from_state_dict(state, prefix, *others)


def test_buffers_of_another_shape_become_the_roots(ranks: RankPool) -> None:
    def body() -> object:
        model = torch.nn.Sequential(Sized(3 - 3 * hvd.rank()))
        hvd.elastic.TorchState(model=model).sync()
        return describe(dict(model.state_dict()))

    assert ranks.run(body) == [{"0.scale": (torch.float32, [1.0] * 3)}] * 2


def test_quantized_buffers_become_the_roots(ranks: RankPool) -> None:
    def body() -> object:
        model = torch.nn.Linear(1, 1)
        with warnings.catch_warnings(action="ignore"):  # torch 2.13 calls such tensors deprecated
            codes = torch.quantize_per_tensor(torch.ones(2) * (5 - hvd.rank()), 0.5, 0, torch.qint8)
            model.register_buffer("codes", codes)
            hvd.elastic.TorchState(model=model).sync()
        return model.codes.dequantize().tolist()

    assert ranks.run(body) == [[5.0, 5.0]] * 2
