"""A state dict that is kept is that of now, whatever has changed since it was made."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from worker_runtime.snapshots.contents import Packer, unpack
from worker_runtime.snapshots.known_states import KnownStates


class Counting(torch.nn.Linear):
    """A layer with a state that is no tensor."""

    def get_extra_state(self) -> int:
        """See `torch.nn.Module`."""
        return 7


def make_training() -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.rand(4, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def look(state: Any) -> Any:
    """What a state dict has: the memory of each tensor in its place."""
    if isinstance(state, dict):
        return {key: look(item) for key, item in state.items()}
    if isinstance(state, list):
        return [look(item) for item in state]
    return (state.data_ptr(), state.dtype, tuple(state.shape)) if isinstance(state, torch.Tensor) else state


def take_plainly(owner: Any) -> Any:
    return owner.state_dict(keep_vars=True) if isinstance(owner, torch.nn.Module) else owner.state_dict()


@pytest.mark.parametrize("number", [0, 1], ids=["module", "optimizer"])
def test_a_state_dict_is_kept_while_only_values_change(number: int) -> None:
    model, optimizer = make_training()
    states = KnownStates((model, optimizer)[number])
    states.take()
    kept = states.known
    model(torch.rand(4, 2)).sum().backward()
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert look(states.take()) == look(take_plainly(states.owner))
    assert states.known is kept is not None
    assert [*map(id, kept.tensors)] == [
        id(tensor) for part in kept.value.values() for tensor in (part.values() if isinstance(part, dict) else [part])
    ]


def add_hook(model: torch.nn.Sequential) -> None:
    model[0].register_state_dict_post_hook(lambda _module, state, prefix, _metadata: state.__delitem__(f"{prefix}bias"))


CHANGES: dict[str, Callable[[torch.nn.Sequential, torch.optim.Optimizer], object]] = {
    "a parameter": lambda model, _: setattr(model[0], "bias", torch.nn.Parameter(torch.ones(3))),
    "a buffer": lambda model, _: setattr(model[1], "running_mean", torch.ones(3)),
    "a layer": lambda model, _: model.__setitem__(0, torch.nn.Linear(2, 3)),
    "a further layer": lambda model, _: model.append(torch.nn.Linear(3, 3)),
    "no bias": lambda model, _: setattr(model[0], "bias", None),
    "another name": lambda model, _: model._modules.__setitem__("first", model._modules.pop("0")),
    "a hook": lambda model, _: add_hook(model),
    "a buffer that is not persistent": lambda model, _: model[1]._non_persistent_buffers_set.add("running_mean"),
    "an optimizer's empty state": lambda _, optimizer: optimizer.state.clear(),
    "a tensor of its state": lambda model, optimizer: optimizer.state[model[0].bias].update(step=torch.ones(())),
    "a word in its state": lambda model, optimizer: optimizer.state[model[0].bias].update(kind="new"),
    "a further group": lambda _, optimizer: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]}),
    "other places of parameters": lambda _, optimizer: optimizer.param_groups[0]["params"].reverse(),
    "a loaded state": lambda _, optimizer: optimizer.load_state_dict(optimizer.state_dict()),
    "a hook of an optimizer": lambda _, optimizer: optimizer.register_state_dict_post_hook(lambda _, state: {**state}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_objects_is_seen(change: str) -> None:
    model, optimizer = make_training()
    states = [KnownStates(model), KnownStates(optimizer)]
    for each in states:
        each.take()
    CHANGES[change](model, optimizer)
    for _ in range(2):
        assert [look(each.take()) for each in states] == [look(take_plainly(each.owner)) for each in states]


def test_a_module_with_more_than_tensors_is_asked_each_time() -> None:
    states = KnownStates(torch.nn.Sequential(Counting(2, 2)))
    assert states.take()["0._extra_state"] == 7
    assert states.known is None


def test_a_hook_of_a_module_gets_the_tensors_that_torch_gives_it() -> None:
    model, _ = make_training()
    model._register_state_dict_hook(lambda _module, state, _prefix, _metadata: keep_arrays(state))
    states = KnownStates(model)
    for _ in range(2):
        assert states.take()["0.bias.array"].tolist() == model[0].bias.tolist()
    assert states.known is None


def keep_arrays(state: dict[str, Any]) -> None:
    state.update({f"{name}.array": tensor.numpy() for name, tensor in state.items()})


@pytest.mark.parametrize("number", [0, 1], ids=["module", "optimizer"])
def test_an_object_that_has_got_another_state_dict_is_asked_each_time(number: int) -> None:
    owner = make_training()[number]

    def make(**_: object) -> dict[str, Any]:
        part = {"calls": torch.tensor(next(calls))}
        return {"state": {0: part}, "param_groups": []} if number else part

    calls = iter(range(2))
    owner.state_dict = make  # type: ignore[method-assign]  # as scripts do
    states = KnownStates(owner)
    taken = [states.take() for _ in range(2)]
    assert [(each["state"][0] if number else each)["calls"].item() for each in taken] == [0, 1]


def test_an_optimizer_whose_state_is_new_in_each_step_is_asked_each_time() -> None:
    model, optimizer = make_training()
    states = KnownStates(optimizer)
    for step in range(20):
        optimizer.state[model[0].bias]["step"] = torch.tensor(float(step))
        assert look(states.take()) == look(optimizer.state_dict())
    assert states.known is None


def test_a_tensor_that_gets_another_dtype_or_size_in_place_is_packed_as_it_is() -> None:
    model, _ = make_training()
    states, packer = KnownStates(model), Packer()
    for replace in (lambda it: it.double(), lambda it: it.half(), lambda it: it.bfloat16(), lambda it: it[:1]):
        for owner in (model[0].bias, model[0].weight):
            owner.data = replace(owner.data)
        state = states.take()
        assert states.known is not None
        description, tensors = packer.pack({"model": state}, [states.known])
        memory = bytearray(packer.data_bytes)
        torch._foreach_copy_(packer.view(memory), [each.detach() for each in tensors])
        (found,) = unpack(description, memory, []).values()
        assert {name: (each.dtype, each.tolist()) for name, each in found.items()} == {
            name: (each.dtype, each.tolist()) for name, each in model.state_dict().items()
        }


def test_another_object_in_the_place_of_one_is_packed_under_its_own_names() -> None:
    packer = Packer()
    for names in ("ab", "ba"):
        module = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1) for name in names})
        states = KnownStates(module)
        for _ in range(2):
            state = states.take()
            assert states.known is not None
            description, tensors = packer.pack({"model": state}, [states.known])
        memory = bytearray(packer.data_bytes)
        torch._foreach_copy_(packer.view(memory), [each.detach() for each in tensors])
        (found,) = unpack(description, memory, []).values()
        assert look_at_values(found) == look_at_values(module.state_dict())


def look_at_values(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in state.items()}


@pytest.mark.filterwarnings("ignore:`torch.jit.* is")
@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda module: torch.jit.trace(module, torch.ones(1, 1))], ids=["scripted", "traced"]
)
def test_a_module_of_torchscript_is_asked_each_time(make: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
    module = make(torch.nn.Linear(1, 1))
    states = KnownStates(module)
    assert [look_at_values(states.take()) for _ in range(2)] == [look_at_values(module.state_dict())] * 2
    assert states.known is None
