"""What makes replicas equal before training starts: parameters, optimizer state and Python objects from one rank."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from worker_runtime import objects
from worker_runtime.collectives import broadcast_async
from worker_runtime.runtime import RUNTIME
from worker_runtime.torch.optimizer import unwrap


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]], root_rank: int
) -> None:
    """Overwrite tensors in place with those of rank `root_rank`.

    Args:
        params: a state_dict, or tensors, or (name, tensor) pairs; the same names, shapes and order on all ranks.
        root_rank: whose values.

    Raises:
        ValueError: something else was given; nothing was sent.
        HorovodInternalError: the operation failed, or Horovod has not been initialized.
    """
    executor = RUNTIME.executor
    named = list(_name_tensors(params))
    handles = [broadcast_async(executor, tensor, root_rank, name) for name, tensor in named]
    for handle in handles:
        handle.wait()


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give all ranks the options and the state of the optimizer of rank `root_rank`; no step is run for it.

    Horovod makes missing state by running one step, which changes parameters and state; here the other ranks learn
    from the root which state there is, and an optimizer without state stays so.

    Args:
        optimizer: plain or distributed, with the same parameter groups on all ranks.
        root_rank: whose state.
        model: Horovod's argument; nothing is needed of it here.

    Raises:
        ValueError: the optimizer of this rank has other parameter groups than the root's.
        HorovodInternalError: an operation failed, or Horovod has not been initialized.
    """
    del model
    executor = RUNTIME.executor
    if executor.size == 1:
        return
    plain = unwrap(optimizer)
    is_root = executor.rank == root_rank
    own = plain.state_dict()
    outline = objects.broadcast_object(executor, _outline(own) if is_root else None, root_rank, "optimizer.outline")
    state = _copy_state(own["state"]) if is_root else _allocate_state(outline["state"])
    handles = [
        broadcast_async(executor, tensor, root_rank, f"optimizer.{index}.{key}")
        for index, values in state.items()
        for key, tensor in values.items()
        if isinstance(tensor, torch.Tensor)
    ]
    for handle in handles:
        handle.wait()
    if not is_root:
        _load(plain, outline["param_groups"], state)


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None) -> Any:  # noqa: ANN401 - any object
    """The object of rank `root_rank` on all ranks: itself on the root, a copy elsewhere. It travels by cloudpickle."""
    return objects.broadcast_object(RUNTIME.executor, obj, root_rank, name)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:  # noqa: ANN401 - any object
    """The objects of all ranks, in rank order. They travel by cloudpickle."""
    return objects.allgather_object(RUNTIME.executor, obj, name)


def _name_tensors(params: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(params, Mapping):
        pairs: Iterable[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str | bytes):
        pairs = params
    else:
        raise ValueError(f"invalid params of type {type(params).__name__}; give a state_dict, tensors or named tensors")  # noqa: TRY004 - Horovod's error
    for index, pair in enumerate(pairs):
        name, tensor = pair if isinstance(pair, tuple) else (str(index), pair)
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"broadcast_parameters: '{name}' is of type {type(tensor).__name__}, not a tensor")  # noqa: TRY004 - Horovod's error
        yield name, tensor


class _Missing:
    """Stands for a tensor that travels by itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def _outline(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dict with its per-parameter tensors left out."""
    state = {
        index: {key: _Missing(value) if isinstance(value, torch.Tensor) else value for key, value in values.items()}
        for index, values in state_dict["state"].items()
    }
    return {"state": state, "param_groups": state_dict["param_groups"]}


def _allocate_state(state: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {
        index: {
            key: torch.empty(value.shape, dtype=value.dtype) if isinstance(value, _Missing) else value
            for key, value in values.items()
        }
        for index, values in state.items()
    }


def _copy_state(state: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {index: dict(values) for index, values in state.items()}


def _load(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: dict[int, dict[str, Any]]) -> None:
    """Load options and state, and keep the state's own dtypes, which torch would change to the parameter's."""
    own_groups = optimizer.state_dict()["param_groups"]
    theirs, ours = ([len(group["params"]) for group in some] for some in (groups, own_groups))
    if theirs != ours:
        raise ValueError(
            f"the optimizer's groups have {ours} parameters here and {theirs} on the root rank; "
            "build the same optimizer on all ranks before broadcast_optimizer_state()"
        )
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = [index for group in groups for index in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        for key, value in state.get(index, {}).items():
            if isinstance(value, torch.Tensor) and optimizer.state[parameter][key].dtype != value.dtype:
                optimizer.state[parameter][key] = value
