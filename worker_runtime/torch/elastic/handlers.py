"""What a state does with each kind of object: how it is saved, restored, synchronised, and kept in a file.

Copies lie in the host's memory; where an earlier copy fits, they are made in its place. That takes a sixth of the time
of a copy into new memory, which the kernel must first give and clear (100 MB: 9 ms instead of 57), and there are not
two copies meanwhile.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
    """Saves, restores and synchronises one object of the state.

    Args:
        value: the object.
    """

    def __init__(self, value: Any) -> None:  # noqa: ANN401 - of the kind that the subclass handles
        self.value = value
        self.save()

    @abstractmethod
    def save(self) -> None:
        """Keep a copy in this process's memory."""

    @abstractmethod
    def restore(self) -> None:
        """Return to what was saved last."""

    @abstractmethod
    def sync(self) -> None:
        """Give all ranks the object of rank 0, which counts as saved then."""

    def reset(self) -> None:  # noqa: B027 - most objects need not adapt
        """Adapt to another size or rank."""

    def needs_sync(self) -> bool:
        """Whether ranks may differ although all have come through the same program; the same on all ranks."""
        return False

    def waits_for_reset(self) -> bool:
        """Whether ranks were lost without an interruption, and this depends on how many there are."""
        return False

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - what can be pickled
        """What of the object goes into a file, as it was saved last."""
        return self.value

    def from_checkpoint(self, kept: Any) -> Any:  # noqa: ANN401 - as above
        """Set the object to what was in a file, and return it, or one that takes its place; a sync follows."""
        return kept

    def describe_course(self) -> Any:  # noqa: ANN401, B027 - as above; most objects have none
        """What else goes into a file, so that a job of the same size goes on to the last bit; None for nothing."""

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401, B027 - as above
        """Go on so, on every rank; see `State.resume_course`."""

    def set_value(self, value: Any) -> None:  # noqa: ANN401 - as above
        """Handle another object from now on."""
        self.value = value
        self.save()


@runtime_checkable
class Stateful(Protocol):
    """What torch makes by a dozen classes: learning rate schedulers, gradient scalers, averaged models."""

    def state_dict(self) -> dict[str, Any]:
        """What it knows, but for the objects that it works on."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, with its own objects."""


class StatefulHandler(StateHandler):
    """Keeps what an object says of itself in its state_dict: others, which it works on, stay its own."""

    _saved: Any = None

    def save(self) -> None:
        """Copy its state_dict to the host's memory, in place of the earlier copy."""
        self._saved = copy_to_host(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        """Load a copy of the copy: some, as optimizers, go on with the very tensors that they are given."""
        self.value.load_state_dict(copy_to_host(self._saved))

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - what can be pickled
        """The copy."""
        return self._saved

    def from_checkpoint(self, kept: Any) -> Any:  # noqa: ANN401 - as above
        """Load it."""
        self.value.load_state_dict(kept)
        return self.value

    def sync(self) -> None:
        """Load what rank 0 has."""
        self.value.load_state_dict(broadcast_object(copy_to_host(self.value.state_dict()), name="elastic.object"))
        self.save()


class ModelStateHandler(StatefulHandler):
    """Keeps a module: its parameters, its buffers, and what else is in its state_dict."""

    def sync(self) -> None:
        """Overwrite the tensors in place; the rest travels as one object."""
        broadcast_model(self.value, root_rank=0)
        self.save()


class OptimizerStateHandler(StatefulHandler):
    """Keeps an optimizer, plain or distributed: its options and its state."""

    def sync(self) -> None:
        """Give all ranks the options and the state of rank 0; no step is run."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()

    def from_checkpoint(self, kept: Any) -> Any:  # noqa: ANN401 - as above
        """Load it; a distributed one would ask the other ranks what to do with gradients."""
        load_optimizer_state(unwrap(self.value), kept["param_groups"], kept["state"])
        return self.value

    def describe_course(self) -> Any:  # noqa: ANN401 - plain numbers
        """How a distributed one has its gradients travel."""
        reducer = find_reducer(self.value)
        return None if reducer is None else reducer.course

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - as above
        """Let them travel so."""
        del restore_random
        reducer = find_reducer(self.value)
        if reducer is not None:
            reducer.resume(course)


class ElasticSampler(sampler.ElasticSampler, Sampler[int]):
    """Deals out the indices of a data set for a torch DataLoader; see `worker_runtime.elastic.sampler.ElasticSampler`.

    Args:
        dataset: what is sampled; only its length counts.
        shuffle: whether the order is random, another one in each epoch, the same on all ranks.
        seed: of that order.
    """


class SamplerStateHandler(StatefulHandler):
    """Keeps a sampler: the epoch, and how much of it is processed."""

    def describe_course(self) -> Any:  # noqa: ANN401 - a truth value
        """Whether the program is in the midst of a pass."""
        return self.value.is_in_pass or None

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - as above
        """The pass that goes on is a new one for its loader, which draws a random number to begin it."""
        del course
        self.value.continue_pass_with(restore_random)

    def reset(self) -> None:
        """Deal out what is left among the workers that there are now."""
        self.value.reset()

    def needs_sync(self) -> bool:
        """Where no steps are committed, each rank counts for itself."""
        sampler: ElasticSampler = self.value
        return sampler.may_differ

    def waits_for_reset(self) -> bool:
        """Where lost ranks have samples that no other will process."""
        sampler: ElasticSampler = self.value
        return sampler.is_outdated


Registry = Sequence[tuple[type, Callable[[Any], StateHandler]]]


class _Handlers:
    """Which handler keeps objects of which class; the first that fits."""

    def __init__(self) -> None:
        self.registry: Registry = [
            (torch.nn.Module, ModelStateHandler),
            (torch.optim.Optimizer, OptimizerStateHandler),
            (ElasticSampler, SamplerStateHandler),
            (Stateful, StatefulHandler),
        ]


_HANDLERS = _Handlers()


def get_handler_registry() -> Registry:
    """The classes of objects that have a handler, and their handlers, in the order in which they are tried."""
    return _HANDLERS.registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the registry, for states that are made later."""
    _HANDLERS.registry = registry


def find_handler(value: object) -> StateHandler | None:
    """A handler for an object; None for a plain one."""
    return next((make(value) for kind, make in _HANDLERS.registry if isinstance(value, kind)), None)


def copy_to_host(value: Any, earlier: Any = None) -> Any:  # noqa: ANN401 - what a state_dict holds
    """A copy whose tensors lie in the host's memory.

    Args:
        value: tensors in dicts, lists and tuples, and other objects, which are copied deeply.
        earlier: a copy that is not needed any more; its tensors are overwritten where they have the same form.
    """
    if isinstance(value, torch.Tensor):
        return _copy_tensor(value.detach(), earlier)
    if isinstance(value, dict):
        copied = copy.copy(value)  # with what a module's state_dict says beside its items
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
    """Whether a copy in its place is what a new one would be."""
    return (
        type(tensor) is torch.Tensor
        and type(earlier) is torch.Tensor
        and not (tensor.is_quantized or earlier.is_inference())
        and tensor.layout is earlier.layout is torch.strided
        and (tensor.dtype, tensor.shape, tensor.stride()) == (earlier.dtype, earlier.shape, earlier.stride())
    )
