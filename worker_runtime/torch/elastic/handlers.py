"""Handlers, which save, restore and synchronize the objects of a TorchState, and put them into checkpoints.

Copies are in the host's memory. A copy overwrites the earlier one where it fits: that takes a sixth of the time of a
copy into new memory, which the kernel must allocate and clear (100 MB: 9 ms instead of 57), and needs no memory for a
second copy.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch.utils.data import Sampler

from worker_runtime.api.functions import broadcast_object
from worker_runtime.elastic import sampler
from worker_runtime.torch.functions import (
    broadcast_model,
    broadcast_optimizer_state,
    load_optimizer_state,
)
from worker_runtime.torch.optimizer import find_reducer
from worker_runtime.torch.proxies import unwrap


class StateHandler(ABC):
    """Saves, restores and synchronizes one object of the state.

    Args:
        value: the object.
    """

    def __init__(self, value: Any) -> None:  # noqa: ANN401 - of the registered class
        self.value = value
        self.save()

    @abstractmethod
    def save(self) -> None:
        """Copy the object's state to this process's memory."""

    @abstractmethod
    def restore(self) -> None:
        """Restore what `save()` saved last."""

    @abstractmethod
    def sync(self) -> None:
        """Broadcast the object's state from rank 0 to all ranks, and save it."""

    def reset(self) -> None:  # noqa: B027 - most objects need not adapt
        """Adapt to a changed size or rank."""

    def needs_sync(self) -> bool:
        """Whether the ranks' objects may differ, although all run the same program. The same result on all ranks."""
        return False

    def waits_for_reset(self) -> bool:
        """Whether ranks were lost without an interruption, and the object depends on the number of ranks."""
        return False

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - what can be pickled
        """Return what `save()` saved last, for a checkpoint."""
        return self.value

    def from_checkpoint(self, kept: Any) -> Any:  # noqa: ANN401 - as above
        """Load the object from a checkpoint, and return it or its replacement. A `sync()` follows."""
        return kept

    def describe_course(self) -> Any:  # noqa: ANN401, B027 - as above; most objects have none
        """Return what else a job of the same size needs to continue bit for bit; None for nothing."""

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401, B027 - as above
        """Continue from the return value of `describe_course()`; see `State.resume_course`."""

    def set_value(self, value: Any) -> None:  # noqa: ANN401 - as above
        """Handle another object in place of the present one."""
        self.value = value
        self.save()


@runtime_checkable
class Stateful(Protocol):
    """An object with a state_dict: learning rate schedulers, gradient scalers, averaged models."""

    def state_dict(self) -> dict[str, Any]:
        """Return its own state, without that of the objects that it refers to."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load its own state, and keep its references."""


class StatefulHandler(StateHandler):
    """Saves an object by its state_dict. Objects that it refers to are not saved with it."""

    _saved: Any = None

    def save(self) -> None:
        """Copy the state_dict to the host's memory, over the earlier copy where it fits."""
        self._saved = copy_to_host(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        """Load a copy of the saved state_dict: some objects, such as optimizers, keep the tensors that they load."""
        self.value.load_state_dict(copy_to_host(self._saved))

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - what can be pickled
        """Return the saved state_dict."""
        return self._saved

    def from_checkpoint(self, kept: Any) -> Any:  # noqa: ANN401 - as above
        """Load a state_dict."""
        self.value.load_state_dict(kept)
        return self.value

    def sync(self) -> None:
        """Broadcast the state_dict of rank 0, load it, and save it."""
        self.value.load_state_dict(broadcast_object(copy_to_host(self.value.state_dict()), name="elastic.object"))
        self.save()


class ModelStateHandler(StatefulHandler):
    """Saves a module: its parameters, buffers and all else in its state_dict."""

    def sync(self) -> None:
        """Broadcast the tensors in place and the rest as one object, and save them."""
        broadcast_model(self.value, root_rank=0)
        self.save()


class OptimizerStateHandler(StatefulHandler):
    """Saves a plain or distributed optimizer: its options and its state."""

    def sync(self) -> None:
        """Broadcast the options and the state of rank 0 without running a step, and save them."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()

    def reset(self) -> None:
        """Clear the gradients: those of an interrupted step would be added to the next one's."""
        self.value.zero_grad()

    def from_checkpoint(self, kept: Any) -> Any:  # noqa: ANN401 - as above
        """Load into the plain optimizer: loading into a distributed one is a collective, and only rank 0 loads."""
        load_optimizer_state(unwrap(self.value), kept["param_groups"], kept["state"])
        return self.value

    def describe_course(self) -> Any:  # noqa: ANN401 - plain numbers
        """Return a distributed optimizer's plan of gradient buckets."""
        reducer = find_reducer(self.value)
        return None if reducer is None else reducer.course

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - as above
        """Use this plan of gradient buckets."""
        del restore_random
        reducer = find_reducer(self.value)
        if reducer is not None:
            reducer.resume(course)


class ScalerStateHandler(StatefulHandler):
    """Saves a gradient scaler: its scale."""

    def reset(self) -> None:
        """Begin a step: a scaler takes each optimizer's gradients for unscaled until its next `update()`."""
        with suppress(AssertionError):  # it has scaled nothing yet
            self.value.update(self.value.get_scale())


class ElasticSampler(sampler.ElasticSampler, Sampler[int]):
    """The elastic sampler for a torch DataLoader; see `worker_runtime.elastic.sampler.ElasticSampler`.

    Args:
        dataset: the data set; only its length is used.
        shuffle: use a random order, a new one in each epoch, the same on all ranks.
        seed: the seed of the random order.
    """


class SamplerStateHandler(StatefulHandler):
    """Saves a sampler: the epoch, and which of its samples are processed."""

    def describe_course(self) -> Any:  # noqa: ANN401 - a truth value
        """Return True if the program is in a pass through the sampler; else None."""
        return self.value.is_in_pass or None

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - as above
        """Restore the random generators after the loader has drawn its number for the continued pass."""
        del course
        self.value.continue_pass_with(restore_random)

    def reset(self) -> None:
        """Distribute the unprocessed samples among the present workers."""
        self.value.reset()

    def needs_sync(self) -> bool:
        """Whether ranks may differ in which samples count as processed; see `ElasticSampler.may_differ`."""
        sampler: ElasticSampler = self.value
        return sampler.may_differ

    def waits_for_reset(self) -> bool:
        """Whether lost ranks have unprocessed samples; see `ElasticSampler.is_outdated`."""
        sampler: ElasticSampler = self.value
        return sampler.is_outdated


Registry = Sequence[tuple[type, Callable[[Any], StateHandler]]]


class _Handlers:
    """The handler class of each object class; the first match is used."""

    def __init__(self) -> None:
        self.registry: Registry = [
            (torch.nn.Module, ModelStateHandler),
            (torch.optim.Optimizer, OptimizerStateHandler),
            (ElasticSampler, SamplerStateHandler),
            (torch.amp.GradScaler, ScalerStateHandler),
            (Stateful, StatefulHandler),
        ]


_HANDLERS = _Handlers()


def get_handler_registry() -> Registry:
    """The object classes and their handlers, in the order in which they are tried."""
    return _HANDLERS.registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the registry, for states that are created later."""
    _HANDLERS.registry = registry


def find_handler(value: object) -> StateHandler | None:
    """A new handler for an object; None where no class matches."""
    return next((make(value) for kind, make in _HANDLERS.registry if isinstance(value, kind)), None)


def copy_to_host(value: Any, earlier: Any = None) -> Any:  # noqa: ANN401 - what a state_dict holds
    """A copy whose tensors are in the host's memory.

    Args:
        value: tensors in dicts, lists and tuples, and other objects, which are deep-copied.
        earlier: an earlier copy; its tensors are overwritten and used again where their form is the same.
    """
    if isinstance(value, torch.Tensor):
        return _copy_tensor(value.detach(), earlier)
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps the attributes of a module's state_dict
        known = earlier if isinstance(earlier, dict) else {}
        for key, item in value.items():
            copied[key] = copy_to_host(item, known.get(key))
        return copied
    if type(value) in (list, tuple):
        items = list(earlier) if type(earlier) is type(value) else []
        items += [None] * (len(value) - len(items))
        return type(value)(copy_to_host(item, known) for item, known in zip(value, items, strict=False))
    return copy.deepcopy(value)


def _copy_tensor(tensor: torch.Tensor, earlier: object) -> torch.Tensor:
    return earlier.copy_(tensor) if _fits(earlier, tensor) else tensor.to("cpu", copy=True)


def _fits(earlier: object, tensor: torch.Tensor) -> TypeGuard[torch.Tensor]:
    """Whether copying the tensor into the earlier one gives the same as a new copy."""
    return (
        type(tensor) is torch.Tensor
        and type(earlier) is torch.Tensor
        and not (tensor.is_quantized or earlier.is_inference())
        and tensor.layout is earlier.layout is torch.strided
        and (tensor.dtype, tensor.shape, tensor.stride()) == (earlier.dtype, earlier.shape, earlier.stride())
    )
