"""The state of a PyTorch training: models, optimizers and samplers, each kept by a handler, and plain objects."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from worker_runtime.elastic import ObjectState
from worker_runtime.job import rank
from worker_runtime.torch.elastic.copies import copy_to_host
from worker_runtime.torch.elastic.sampler import ElasticSampler
from worker_runtime.torch.functions import broadcast_model, broadcast_object, broadcast_optimizer_state


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


class SamplerStateHandler(StateHandler):
    """Keeps a sampler: the epoch, and how much of it is processed."""

    def save(self) -> None:
        """Copy its state."""
        self._saved = self.value.state_dict()

    def restore(self) -> None:
        """Load the copy."""
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """Let all ranks go on where rank 0 is."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), name="elastic.sampler"))
        self.save()

    def reset(self) -> None:
        """Deal out what is left among the workers that there are now."""
        self.value.reset()

    def needs_sync(self) -> bool:
        """Where no steps are committed, each rank counts for itself."""
        sampler: ElasticSampler = self.value
        return sampler.may_differ

    def waits_for_reset(self) -> bool:
        """Where the lost have samples that nobody else will process."""
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

    def find(self, value: object) -> StateHandler | None:
        """A handler for the object; None for a plain one."""
        return next((make(value) for kind, make in self.registry if isinstance(value, kind)), None)


_HANDLERS = _Handlers()


def get_handler_registry() -> Registry:
    """The classes of objects that have a handler, and their handlers, in the order in which they are tried."""
    return _HANDLERS.registry


def set_handler_registry(registry: Registry) -> None:
    """Replace the registry, for states that are made later."""
    _HANDLERS.registry = registry


class TorchState(ObjectState):
    """State of a PyTorch training, for `elastic.run`.

    Modules, optimizers, `ElasticSampler`s, and all else that has a state_dict (learning rate schedulers, a GradScaler),
    under any keyword, are kept by their state_dicts; other values must be picklable. Each becomes an attribute; to
    assign another object to one replaces what is kept.

    Args:
        model: a module; as if it were one of the others, and so is
        optimizer: an optimizer, plain or distributed.
        **kwargs: the attributes and their values.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        self._handlers: dict[str, StateHandler] = {}
        super().__init__(lambda value: broadcast_object(value, root_rank=0), rank)
        self.register(model=model, optimizer=optimizer, **kwargs)

    def register(self, **kwargs: object) -> None:
        """Keep more objects, or others in the place of those of the same names, from now on.

        Args:
            **kwargs: the attributes and their values; the same names in the same order on all ranks.
        """
        for name, value in kwargs.items():
            self._handlers.pop(name, None)
            self._saved_state.pop(name, None)
            handler = _HANDLERS.find(value)
            if handler is None:
                self._saved_state[name] = value
            else:
                self._handlers[name] = handler
            object.__setattr__(self, name, value)
        ObjectState.save(self)

    def save(self) -> None:
        """Keep copies of all, in the host's memory."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Return to what was saved last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give all ranks the state of rank 0, which counts as saved then."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Deal samples out anew, for the size and rank of now."""
        for handler in self._handlers.values():
            handler.reset()

    def needs_sync(self) -> bool:
        """Whether ranks may differ although all have come through the same program; the same on all ranks."""
        return any(handler.needs_sync() for handler in self._handlers.values())

    def waits_for_reset(self) -> bool:
        """Whether ranks were lost without an interruption, and something here depends on how many there are."""
        # Every handler is asked: a sampler counts its batch then.
        found = [handler.waits_for_reset() for handler in self._handlers.values()]
        return any(found) or super().waits_for_reset()

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any attribute
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
        object.__setattr__(self, name, value)
