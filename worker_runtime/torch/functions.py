"""Broadcasts that make replicas equal before training: parameters and optimizer state from one rank."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from math import prod
from typing import Any, TypeGuard

import torch
from torch.autograd.graph import increment_version
from torch.nn.parameter import is_lazy

from worker_runtime.api.calls import begin_call
from worker_runtime.api.failed_calls import await_all
from worker_runtime.api.functions import broadcast_object
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.collectives.broadcast import Broadcast
from worker_runtime.collectives.tensor_operation import read_root
from worker_runtime.collectives.untraced import untraced
from worker_runtime.elastic.copies import copy_nested
from worker_runtime.engine import objects
from worker_runtime.errors import ShapelessParameterError, WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.reduction.bucket import find_dtype
from worker_runtime.torch.loading import is_usual, load_optimizer_state
from worker_runtime.torch.proxies import check_optimizer, list_parameters, unwrap
from worker_runtime.torch.sharding import refuse_parts

_PAIR = 2
_STATE = "broadcast_optimizer_state"


@untraced
def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrite tensors in place with those of rank `root_rank`; not differentiable.

    Args:
        params: `model.state_dict()`, `model.named_parameters()`, or an iterable of tensors or of (name, tensor) pairs;
            a generator is accepted (Horovod rejects it). Names, shapes and dtypes are the same on all ranks. Tensors
            without a name are matched by their position. Copies that a model's `state_dict()` makes are overwritten,
            not the model: `hvd.prepare` and states load them.
        root_rank: the rank in the job that sends, also when you give a process set.
        process_set: the ranks that take part.

    Raises:
        ValueError: `params` is something else, or the root is not in the set. Nothing was sent.
        AttributeError: a value is not a tensor, as in Horovod; the error is a ValueError too.
        HorovodInternalError: the ranks give different tensors; the operation failed; or Horovod has not been
            initialized.
    """
    named = list(_name_values(params))
    calls = [(begin_call("broadcast", name, process_set), value) for name, value in named]
    with ExitStack() as all_calls:
        for call, _ in calls:
            all_calls.enter_context(call.preparing())
        tensors = _check_tensors(named)
        refuse_parts("broadcast_parameters", tensors, process_set)
        operations = [Broadcast((tensor,), root_rank, call.among, call.name, (tensor,)) for call, tensor in calls]
    increment_version(tensors)
    engine = RUNTIME.engine
    await_all(engine, [engine.submit(operation) for operation in operations])


def broadcast_model(model: torch.nn.Module, root_rank: int) -> None:
    """Broadcast a module's state_dict: its dense parameters and buffers in place, all other values as one object.

    Buffers may have other shapes, as those of quantization-aware modules have before their first forward pass.

    Args:
        model: the same module on all ranks; only its values may differ.
        root_rank: the rank in the job that sends.

    Raises:
        HorovodInternalError: the ranks have different modules; an operation failed; or Horovod has not been
            initialized.
    """
    state = model.state_dict()
    trained = dict(model.named_parameters(remove_duplicate=False))
    places = {
        each.data_ptr() for each in (*trained.values(), *model.buffers()) if _is_dense(each) and not is_lazy(each)
    }
    tensors = {name: value for name, value in state.items() if is_lazy(value) or _is_in(value, places)}
    loaded: dict[str, Any] = {}
    if others := {name: value for name, value in state.items() if name not in tensors or name not in trained}:
        sent = {name: _outline(value) if name in tensors else _send_as_object(value) for name, value in others.items()}
        for name, value in broadcast_object(sent, root_rank, "broadcast_model").items():
            if not isinstance(value, _TensorForm):
                loaded[name] = value
            elif name in tensors and value.shape != tensors[name].shape:
                loaded[name] = tensors[name] = tensors[name].new_empty(value.shape)
    broadcast_parameters(tensors, root_rank)
    if loaded:
        model.load_state_dict({**state, **loaded})


@untraced
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast an optimizer's options and state from rank `root_rank`.

    Horovod runs a step to create missing state, which changes parameters. hvdrun runs none: the root sends the names,
    shapes and dtypes of its state first. An optimizer without state stays without; as with Horovod, its parameters
    without a gradient get one of zeros. LBFGS, which Horovod rejects, works too.

    Args:
        optimizer: a plain or distributed optimizer, of the same class and with the same parameter groups on all ranks.
        root_rank: the rank in the job that sends, also when you give a process set.
        model: accepted for Horovod's sake; not used.
        process_set: the ranks that take part.

    Raises:
        ValueError: `optimizer` is not an optimizer, or the root is not in the set.
        HorovodInternalError: the ranks' optimizers differ in their class or parameters; an operation failed; or Horovod
            has not been initialized.
    """
    del model
    call = begin_call(_STATE, "outline", process_set)
    with call.preparing():
        check_optimizer(_STATE, optimizer)
        root_rank = read_root(_STATE, root_rank, call.among.ranks)
        is_root = call.among.rank == root_rank
        plain = unwrap(optimizer)
        refuse_parts(_STATE, (parameter for _, parameter in list_parameters(plain, {})), process_set)
        own = plain.state_dict()
        note = _describe(plain)
        root_outline = None
        if is_root:
            root_outline = outline_state(own)
        if not own.get("state", True):
            _fill_gradients(plain)

    number = call.among.number
    outline = objects.broadcast_object(call.engine, root_outline, root_rank, "outline", number, kind=_STATE, note=note)
    loaded = own
    if not is_root:
        loaded = {**outline, "state": allocate_state(outline["state"], plain)} if is_usual(outline) else outline
    if is_usual(loaded):
        _broadcast_tensors(loaded["state"], root_rank, process_set)
    if not is_root:
        load_optimizer_state(plain, loaded)


def _fill_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Give zeros to trained parameters without a gradient: programs broadcast the gradients next."""
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        if parameter.requires_grad and parameter.grad is None and not is_lazy(parameter):
            zeros = torch.zeros_like(parameter, dtype=find_dtype(parameter)).detach()
            if isinstance(optimizer, torch.optim.SparseAdam):
                parameter.grad = zeros.to_sparse()
            else:
                parameter.grad = zeros


def _name_values(params: object) -> Iterator[tuple[str, Any]]:
    if isinstance(params, Mapping):
        pairs: Iterable[Any] = sorted(params.items(), key=lambda pair: str(pair[0]))
    elif isinstance(params, Iterable) and not isinstance(params, torch.Tensor | str | bytes):
        pairs = params
    else:
        raise ValueError(  # noqa: TRY004 - Horovod's error
            f"invalid params of type: {type(params).__name__}; give a state_dict, tensors or named tensors"
        )

    for index, pair in enumerate(pairs):
        if isinstance(pair, tuple) and len(pair) != _PAIR:
            raise ValueError(f"broadcast_parameters: (name, tensor) pairs were expected, not {len(pair)} values")
        if isinstance(pair, tuple):
            name, value = pair
        else:
            name, value = f"parameter.{index}", pair
        if not isinstance(name, str):
            raise WrongArgumentError(f"broadcast_parameters: {name!r} was given as a name; give a str")
        yield name, value


def _check_tensors(named: Sequence[tuple[str, Any]]) -> list[torch.Tensor]:
    names = Counter(name for name, _ in named)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise ValueError(f"broadcast_parameters: these names occur more than once: {', '.join(twice)}")
    for name, value in named:
        if not isinstance(value, torch.Tensor):
            raise NoTensorError(name, value)
        if is_lazy(value):
            raise ShapelessParameterError(name)
    return [value for _, value in named]


class NoTensorError(AttributeError, ValueError):
    """A parameter is not a tensor. It is an AttributeError too, as in Horovod.

    Cause: `broadcast_parameters` got a value that is not a tensor.
    Remedy: Give `model.state_dict()` or `model.named_parameters()`; send other values with `broadcast_object`.
    """

    def __init__(self, parameter: str, value: object) -> None:
        super().__init__(f"broadcast_parameters: '{parameter}' is of type {type(value).__name__}, not a tensor")


class _TensorForm:
    """Shape, dtype and device type of a tensor whose values are sent separately.

    Args:
        tensor: the tensor.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.device = tensor.device.type


def _broadcast_tensors(state: dict[Any, Any], root_rank: int, process_set: ProcessSet) -> None:
    """Overwrite the tensors of an optimizer's state: those of one device are one operation."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for values in state.values():
        listed = [values]
        if isinstance(values, dict):
            listed = list(values.values())
        for value in listed:
            if _is_dense(value):
                by_device.setdefault(value.device, []).append(value)
    for index, tensors in enumerate(by_device.values()):
        call = begin_call(_STATE, f"tensors.{index}", process_set)
        with call.preparing():
            operation = Broadcast(tensors, root_rank, call.among, call.name, tensors)
        call.engine.run(operation)


def _describe(optimizer: torch.optim.Optimizer) -> str:
    """The properties of an optimizer that must be the same on all ranks, so that the root's state fits."""
    groups = [list(group["params"]) for group in optimizer.param_groups]
    shapes = [[None if is_lazy(parameter) else tuple(parameter.shape) for parameter in group] for group in groups]
    digest = hashlib.blake2s(repr(shapes).encode(), digest_size=4).hexdigest()
    elements = sum(prod(shape) for group in shapes for shape in group if shape is not None)
    counts = ", ".join(str(len(group)) for group in groups)
    return f"{type(optimizer).__name__} of {counts} parameters with {elements} elements ({digest})"


def outline_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state dict with a `_TensorForm` in place of each dense tensor of the state, and the others on the CPU.

    Some optimizers add values of their own, and one around another one may have a state dict of another form.
    """
    is_whole = not is_usual(state_dict)
    sent: dict[str, Any] = _send_as_object(
        {name: each for name, each in state_dict.items() if is_whole or name != "state"}
    )
    if not is_whole:
        sent["state"] = _convert(state_dict["state"], lambda _, value: _outline(value))
    return sent


def _outline(value: object) -> object:
    if _is_dense(value):
        return _TensorForm(value)
    return _send_as_object(value)


def _is_dense(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a value can be overwritten in place; the momentum of a sparse gradient is a tensor, too."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_quantized


def _is_in(value: object, places: AbstractSet[int]) -> bool:
    """Whether a value of a state dict is a tensor of the model: hooks and extra states put other tensors there."""
    return _is_dense(value) and value.data_ptr() in places


def _send_as_object(value: Any) -> Any:
    """A value that is pickled: its tensors on the CPU, since the receiver has other devices."""
    return copy_nested(value, None, torch.Tensor, lambda tensor, _: tensor.detach().to("cpu"))


def allocate_state(state: dict[Any, Any], optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    """The root's state with empty tensors for its values, on the devices of this rank's parameters.

    A value that belongs to no parameter is put on the device of the first one whose device has the root's type.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    first = {parameter.device.type: parameter.device for parameter in reversed(parameters)}

    def allocate(key: object, form: object) -> object:
        if not isinstance(form, _TensorForm):
            return form
        device = first.get(form.device, torch.device("cpu"))
        if form.device == "cpu":
            device = torch.device("cpu")
        elif isinstance(key, int) and key < len(parameters):
            device = parameters[key].device
        return torch.empty(form.shape, dtype=form.dtype, device=device)

    return _convert(state, allocate)


def _convert(state: dict[Any, Any], convert: Callable[[object, object], object]) -> dict[Any, Any]:
    """An optimizer's state with converted values.

    Args:
        state: by the number of a parameter, its values by their names; some optimizers keep other values beside.
        convert: called with the first key of a value, and the value.
    """
    converted: dict[Any, Any] = {}
    for key, values in state.items():
        if isinstance(values, dict):
            converted[key] = {name: convert(key, value) for name, value in values.items()}
        else:
            converted[key] = convert(key, values)
    return converted
