"""A state of objects that have handlers, and of plain objects: the base of each framework's state."""

import os
from collections.abc import Callable
from typing import Any

from worker_runtime.elastic.handlers import Registry, StateHandler
from worker_runtime.elastic.parts import list_parts
from worker_runtime.elastic.states import BroadcastObject, ObjectState, check_names
from worker_runtime.errors import CheckpointError, WrongArgumentError

_HIDDEN = (
    "the state's {} is a {} with an object of the class {} inside, which restore() would replace by a copy; give each "
    "such object a name of its own, as in state.register(first=...)"
)


class HandledState(ObjectState):
    """A state that saves each object by its handler. Objects without one are plain: they must be picklable.

    Each object becomes an attribute. If you assign another object to an attribute, the state saves that one from then
    on. While the function runs, it must be of the same kind: an object in the place of a plain value stays a plain one.

    Args:
        bcast_object: broadcasts an object from rank 0, and returns it on all ranks.
        get_rank: returns this worker's rank.
        registry: finds the handlers.
    """

    def __init__(self, bcast_object: BroadcastObject, get_rank: Callable[[], int], registry: Registry) -> None:
        self._handlers: dict[str, StateHandler] = {}
        self._registry = registry
        super().__init__(bcast_object, get_rank)

    def register(self, **kwargs: object) -> None:
        """Add objects to the state, or replace objects of the same names.

        Args:
            **kwargs: the attributes and their values; the same names in the same order on all ranks.

        Raises:
            ValueError: a list, tuple or dict has an object inside that needs a handler, as a module does.
        """
        for name, value in kwargs.items():
            self._add(name, value)
        ObjectState.save(self)

    def _add(self, name: str, value: Any) -> None:
        """Save this object from now on, by a handler if it has one."""
        handler = self._registry.find_handler(name, value)
        if handler is None:
            self.check_plain(name, value)
        self._handlers.pop(name, None)
        self._saved_state.pop(name, None)
        if handler is None:
            self._saved_state[name] = value
        else:
            self._handlers[name] = handler
        object.__setattr__(self, name, value)

    def check_plain(self, name: str, value: Any) -> None:
        """Refuse a container of objects with handlers: `restore` and `sync` would put copies in their place.

        Raises:
            ValueError: it is one.
        """
        for container, part in list_parts(value):
            if self._registry.find_maker(part) is not None:
                raise WrongArgumentError(_HIDDEN.format(name, type(container).__name__, type(part).__name__))

    def save(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Copy all objects to the host's memory, and with a directory also to a checkpoint: see `ObjectState.save`."""
        for handler in self._handlers.values():
            handler.save()
        super().save(directory)

    def to_checkpoint(self) -> Any:
        """Return the saved objects of the handlers, and the plain attributes."""
        handled = {name: handler.to_checkpoint() for name, handler in self._handlers.items()}
        return {"handled": handled, "plain": super().to_checkpoint()}

    def from_checkpoint(self, kept: Any) -> None:
        """Load all objects and attributes from a checkpoint.

        Raises:
            CheckpointError: the checkpoint has attributes of other names, or an object cannot load its part.
        """
        check_names([*kept["handled"], *kept["plain"]], [*self._handlers, *self._saved_state])
        if others := kept["handled"].keys() ^ self._handlers.keys():
            raise CheckpointError(f"{min(others)} is an object with a state in one, and a plain value in the other")
        for name, handler in self._handlers.items():
            try:
                value = handler.from_checkpoint(kept["handled"][name])
            except Exception as error:
                raise CheckpointError(f"{name}: {error}") from error
            if value is not handler.value:
                setattr(self, name, value)
        super().from_checkpoint(kept["plain"])

    def get_extra_state(self) -> Any:
        """Return the extras of the objects that have one, by attribute."""
        extras = ((name, handler.get_extra_state()) for name, handler in self._handlers.items())
        return {name: extra for name, extra in extras if extra is not None}

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:
        """See `State.load_extra_state`."""
        for name, own in extra.items():
            self._handlers[name].load_extra_state(own, restore_random)

    def restore(self) -> None:
        """Restore what `save()` saved last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Broadcast the state of rank 0 to all ranks, and save it once this rank has all: rank 0 may be lost before."""
        for handler in self._handlers.values():
            handler.sync()
        self._receive()
        HandledState.save(self)

    def reset(self) -> None:
        """Reset all objects for the present size and rank; samplers distribute their samples again."""
        for handler in self._handlers.values():
            handler.reset()

    def needs_sync(self) -> bool:
        """Whether the ranks' states may differ, although all run the same program. The same result on all ranks."""
        return any(handler.needs_sync() for handler in self._handlers.values())

    def waits_for_reset(self) -> bool:
        """Whether a recovery without an interrupt has removed ranks, and an object depends on their number."""
        # Ask every handler, without a shortcut: a sampler records its batch in this call.
        found = [handler.waits_for_reset() for handler in self._handlers.values()]
        return any(found) or super().waits_for_reset()

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        if name in own and (name in self._handlers or name in self._saved_state):
            find_maker = self._registry.find_maker
            # While the function runs, the state has what new workers have in theirs: only the values change.
            if self._size is None and find_maker(value) is not find_maker(own[name]):
                self._add(name, value)
                return
            if name in self._handlers:
                self._handlers[name].set_value(value)
        object.__setattr__(self, name, value)
