"""Handlers, which save, restore and synchronize the objects of a state, and put them into checkpoints.

Here is what needs no framework. Each framework has handlers of its own beside, and a registry that finds them.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from worker_runtime.elastic.exchange import broadcast_object
from worker_runtime.elastic.sampler import ElasticSampler


class StateHandler(ABC):
    """Saves, restores and synchronizes one object of the state.

    Args:
        value: the object.

    name: the attribute of the state; the same on all ranks.
    """

    name = ""

    def __init__(self, value: Any) -> None:
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
        """Broadcast the object's state from rank 0 to all ranks. The elastic state saves it with all others."""

    def reset(self) -> None:  # noqa: B027 - most objects need not adapt
        """Adapt to a changed size or rank."""

    def needs_sync(self) -> bool:
        """Whether the ranks' objects may differ, although all run the same program. The same result on all ranks."""
        return False

    def waits_for_reset(self) -> bool:
        """Whether ranks were lost without an interruption, and the object depends on the number of ranks."""
        return False

    def to_checkpoint(self) -> Any:
        """Return what `save()` saved last, for a checkpoint."""
        return self.value

    def from_checkpoint(self, kept: Any) -> Any:
        """Load the object from a checkpoint, and return it or its replacement. A `sync()` follows."""
        return kept

    def get_extra_state(self) -> Any:  # noqa: B027 - most objects need not adapt
        """Return what else a job of the same size needs to continue bit for bit; None for nothing."""

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:  # noqa: B027 - most objects need not adapt
        """Continue from the return value of `get_extra_state()`; see `State.load_extra_state`."""

    def set_value(self, value: Any) -> None:
        """Handle another object in place of the present one."""
        self.value = value
        self.save()


class AttributeCheck(type):
    """Makes `isinstance()` look for the attributes that a class names, which an object may forward to another one.

    `isinstance()` with a Protocol does not find forwarded attributes since Python 3.12. It finds those of classes, too,
    and raises the errors of an object whose attributes are the keys of a dict. An attribute of the class, such as
    a property, counts where it raises an error: its use shows the error.
    """

    names: tuple[str, ...]

    def __instancecheck__(cls, instance: object) -> bool:
        if isinstance(instance, type):
            return False
        return all(_has(instance, name) for name in cls.names)


def _has(instance: object, name: str) -> bool:
    try:
        return getattr(instance, name) is not None
    except Exception:  # noqa: BLE001 - the object's own code runs here
        return getattr(type(instance), name, None) is not None


class Stateful(metaclass=AttributeCheck):
    """An object with a state_dict: learning rate schedulers, gradient scalers, averaged models.

    names: the attributes of such an object.
    """

    names: tuple[str, ...] = ("state_dict", "load_state_dict")

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return its own state, without that of the objects that it refers to."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load its own state, and keep its references."""


class StatefulHandler(StateHandler):
    """Saves an object by its state_dict. Objects that it refers to are not saved with it."""

    _saved: Any = None

    @staticmethod
    def copy(value: Any, earlier: Any = None) -> Any:
        """A copy of a state_dict. A framework may write it over the earlier one."""
        del earlier
        return copy.deepcopy(value)

    def save(self) -> None:
        """Copy the state_dict, over the earlier copy where it fits."""
        self._saved = self.copy(self.value.state_dict(), self._saved)

    def restore(self) -> None:
        """Load a copy of the saved state_dict: some objects, such as optimizers, keep the tensors that they load."""
        self.value.load_state_dict(self.copy(self._saved))

    def to_checkpoint(self) -> Any:
        """Return the saved state_dict."""
        return self._saved

    def from_checkpoint(self, kept: Any) -> Any:
        """Load a state_dict."""
        self.value.load_state_dict(kept)
        return self.value

    def sync(self) -> None:
        """Broadcast the state_dict of rank 0, and load it."""
        self.value.load_state_dict(broadcast_object(self.copy(self.value.state_dict()), "elastic.object"))


class SamplerStateHandler(StatefulHandler):
    """Saves a sampler: the epoch, and which of its samples are processed."""

    def get_extra_state(self) -> Any:
        """Return True if the program is in a pass through the sampler; else None."""
        return self.value.is_in_pass or None

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:
        """Restore the random generators after the loader has drawn its number for the continued pass."""
        del extra
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


Rows = Sequence[tuple[type, Callable[[Any], StateHandler]]]


class Registry:
    """The handler class of each object class; the first match is used.

    Args:
        rows: the object classes and their handlers, in the order in which they are tried.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def get_handler_registry(self) -> Rows:
        """The object classes and their handlers, in the order in which they are tried."""
        return self._rows

    def set_handler_registry(self, registry: Rows) -> None:
        """Replace the registry, for states that are created later."""
        self._rows = registry

    def find_handler(self, name: str, value: object) -> StateHandler | None:
        """A new handler for an object; None where no class matches.

        Args:
            name: the attribute of the state.
            value: the object.
        """
        make = self.find_maker(value)
        if make is None:
            return None
        handler = make(value)
        handler.name = name
        return handler

    def find_maker(self, value: object) -> Callable[[Any], StateHandler] | None:
        """What makes the handlers of such an object; None where no class matches."""
        return next((make for kind, make in self._rows if isinstance(value, kind)), None)
