"""The state of a PyTorch training: models, optimizers and samplers, each with a handler, and plain objects."""

import os
from collections.abc import Callable
from typing import Any

import torch

from worker_runtime.api.basics import rank
from worker_runtime.api.functions import broadcast_object
from worker_runtime.elastic import ObjectState, check_names
from worker_runtime.errors import CheckpointError
from worker_runtime.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    find_handler,
    get_handler_registry,
    set_handler_registry,
)

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]  # Horovod's names


class TorchState(ObjectState):
    """The state of a PyTorch training, for `elastic.run`.

    You can give modules, optimizers, `ElasticSampler`s, and all other objects with a state_dict (learning rate
    schedulers, a GradScaler) under any keyword: their state_dicts are saved. Other values must be picklable. Each
    object becomes an attribute. If you assign another object to an attribute, the state saves that one from then on.

    Args:
        model: a module.
        optimizer: a plain or distributed optimizer.
        **kwargs: more attributes and their values.
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
        """Add objects to the state, or replace objects of the same names.

        Args:
            **kwargs: the attributes and their values; the same names in the same order on all ranks.
        """
        for name, value in kwargs.items():
            self._handlers.pop(name, None)
            self._saved_state.pop(name, None)
            handler = find_handler(value)
            if handler is None:
                self._saved_state[name] = value
            else:
                self._handlers[name] = handler
            object.__setattr__(self, name, value)
        ObjectState.save(self)

    def save(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Copy all objects to the host's memory, and with a directory also to a checkpoint: see `ObjectState.save`."""
        for handler in self._handlers.values():
            handler.save()
        super().save(directory)

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - what can be pickled
        """Return the saved objects of the handlers, and the plain attributes."""
        handled = {name: handler.to_checkpoint() for name, handler in self._handlers.items()}
        return {"handled": handled, "plain": super().to_checkpoint()}

    def from_checkpoint(self, kept: Any) -> None:  # noqa: ANN401 - as above
        """Load all objects and attributes from a checkpoint.

        Raises:
            CheckpointError: the checkpoint has attributes of other names, or an object cannot load its part.
        """
        check_names([*kept["handled"], *kept["plain"]], [*self._handlers, *self._saved_state])
        for name, handler in self._handlers.items():
            try:
                value = handler.from_checkpoint(kept["handled"][name])
            except Exception as error:
                raise CheckpointError(f"{name}: {error}") from error
            if value is not handler.value:
                setattr(self, name, value)
        super().from_checkpoint(kept["plain"])

    def describe_course(self) -> Any:  # noqa: ANN401 - as above
        """Return the courses of the objects that have one, by attribute."""
        courses = ((name, handler.describe_course()) for name, handler in self._handlers.items())
        return {name: course for name, course in courses if course is not None}

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - as above
        """See `State.resume_course`."""
        for name, own in course.items():
            self._handlers[name].resume_course(own, restore_random)

    def restore(self) -> None:
        """Restore what `save()` saved last."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Broadcast the state of rank 0 to all ranks, and save it."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        """Reset all objects for the present size and rank; samplers distribute their samples again."""
        for handler in self._handlers.values():
            handler.reset()

    def needs_sync(self) -> bool:
        """Whether the ranks' states may differ, although all run the same program. The same result on all ranks."""
        return any(handler.needs_sync() for handler in self._handlers.values())

    def waits_for_reset(self) -> bool:
        """Whether ranks were lost without an interruption, and an object depends on the number of ranks."""
        # Ask every handler, without a shortcut: a sampler records its batch in this call.
        found = [handler.waits_for_reset() for handler in self._handlers.values()]
        return any(found) or super().waits_for_reset()

    def __setattr__(self, name: str, value: Any) -> None:  # noqa: ANN401 - any attribute
        if name != "_handlers" and name in self._handlers:
            self._handlers[name].set_value(value)
        object.__setattr__(self, name, value)
