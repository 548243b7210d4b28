"""Loading states into optimizers and models: what torch alone would convert keeps its dtype, or is refused."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import torch


def is_usual(state_dict: Mapping[str, Any]) -> bool:
    """Whether the state dict of an optimizer has the form of torch's own, maybe with more values."""
    return state_dict.keys() >= {"state", "param_groups"} and all(
        "params" in each for each in state_dict["param_groups"]
    )


def load_optimizer_state(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Load the state of another rank, or of a checkpoint, whose state dict may have another form than torch's own.

    Raises:
        ValueError: the optimizer has other groups here.
    """
    if not is_usual(state_dict):
        optimizer.load_state_dict(state_dict)
        return
    groups, own_groups = state_dict["param_groups"], optimizer.state_dict()["param_groups"]
    theirs, ours = ([len(group["params"]) for group in some] for some in (groups, own_groups))
    if theirs != ours:
        raise ValueError(
            f"the optimizer's groups have {ours} parameters here and {theirs} on the root rank; "
            "build the same optimizer on all ranks before broadcast_optimizer_state()"
        )
    load_checked(optimizer, state_dict)


def load_checked(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Load the state of an optimizer of this kind, with its own dtypes, and tensors of options on this rank's devices.

    torch alone would convert the state to the parameter's dtype, and leave an option on the device that it comes from.
    It takes the state of any optimizer, and fails at a step. An option that an older torch did not have gets its
    default, which torch's optimizers add while they load.

    Args:
        optimizer: the optimizer that is to load the state.
        state_dict: the state.

    Raises:
        ValueError: a group lacks an option that it has here. The optimizer is as it was.
    """
    former = dict(vars(optimizer))
    known = getattr(optimizer, "defaults", {}).keys()
    expected = [known & own.keys() for own in optimizer.param_groups]
    own_options = [
        {name: each for name, each in own.items() if isinstance(each, torch.Tensor)} for own in optimizer.param_groups
    ]
    missing: KeyError | None = None
    try:
        optimizer.load_state_dict(state_dict)
    except KeyError as error:  # in the state of a parameter
        missing = error
    for names, own in zip(expected, optimizer.param_groups, strict=False):
        if lacking := names - own.keys():
            vars(optimizer).update(former)  # loading has put new objects into their place
            raise ValueError(f"the state has no {min(lacking)}: it is that of another optimizer") from missing
    if missing is not None:
        raise missing
    _overwrite(own_options, optimizer.param_groups)
    if is_usual(state_dict):
        _keep_dtypes(optimizer, state_dict)


def refuse_other_dtypes(model: object, state_dict: Mapping[str, Any]) -> None:
    """Check that a module has the dtypes of a state, which torch would convert.

    Raises:
        ValueError: a parameter or buffer has another one.
    """
    if isinstance(model, torch.nn.Module):
        for name, own in chain(model.named_parameters(), model.named_buffers()):
            kept = state_dict.get(name)
            if isinstance(kept, torch.Tensor) and kept.dtype is not own.dtype:
                raise ValueError(f"{name} is of {kept.dtype} there, and of {own.dtype} here")


def _keep_dtypes(optimizer: torch.optim.Optimizer, loaded: dict[str, Any]) -> None:
    """Give an optimizer the loaded state with its own dtypes: torch has converted it to those of the parameters.

    Args:
        optimizer: the optimizer, which has just loaded the state; one around another one may show no state.
        loaded: the loaded state dict.
    """
    own_states = getattr(optimizer, "state", {})
    for group, own in zip(loaded["param_groups"], optimizer.param_groups, strict=False):
        is_on_device = own.get("capturable") or own.get("fused")
        for index, parameter in zip(group["params"], own["params"], strict=False):
            state, kept = loaded["state"].get(index), own_states.get(parameter)
            if isinstance(state, dict) and kept:
                kept |= _keep(state, dict(kept), is_on_device=bool(is_on_device))


def _keep(value: Any, converted: Any, *, is_on_device: bool) -> Any:
    """What torch has converted, with the tensors of other dtypes as they were."""
    if isinstance(value, torch.Tensor) and isinstance(converted, torch.Tensor):
        if converted.dtype is value.dtype:
            return converted
        return value.to(converted.device if value.dim() or is_on_device else value.device)
    if isinstance(value, dict) and isinstance(converted, dict):
        return {
            name: _keep(value[name], item, is_on_device=is_on_device) if name in value else item
            for name, item in converted.items()
        }
    if type(value) in (list, tuple) and type(converted) is type(value):
        return type(value)(
            _keep(item, other, is_on_device=is_on_device) for item, other in zip(value, converted, strict=False)
        )
    return converted


def _overwrite(own_options: Iterable[Mapping[str, torch.Tensor]], groups: Iterable[dict[str, Any]]) -> None:
    """Put loaded options into the tensors that were there, which the program, a schedule or other groups may have.

    Args:
        own_options: the tensors of each group before.
        groups: the loaded groups. What is one tensor in several of them stays one.
    """
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    taken: set[int] = set()
    for own, group in zip(own_options, groups, strict=False):
        for name, mine in own.items():
            value = group.get(name)
            if not isinstance(value, torch.Tensor):
                continue
            if id(value) not in kept:
                fits = (mine.dtype, mine.shape) == (value.dtype, value.shape) and not mine.requires_grad
                if fits and id(mine) not in taken:
                    taken.add(id(mine))
                    kept[id(value)] = value, mine.copy_(value)
                else:
                    kept[id(value)] = value, value.to(mine.device)
            group[name] = kept[id(value)][1]
