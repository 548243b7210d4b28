"""The state of a PyTorch training: models, optimizers and samplers, each kept by a handler, and plain objects."""

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
]  # by Horovod's names


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
            handler = find_handler(value)
            if handler is None:
                self._saved_state[name] = value
            else:
                self._handlers[name] = handler
            object.__setattr__(self, name, value)
        ObjectState.save(self)

    def save(self, directory: str | os.PathLike[str] | None = None) -> None:
        """Keep copies of all, in the host's memory, and with a directory in a file: see `ObjectState.save`."""
        for handler in self._handlers.values():
            handler.save()
        super().save(directory)

    def to_checkpoint(self) -> Any:  # noqa: ANN401 - what can be pickled
        """What the handlers have saved last, and the plain attributes."""
        handled = {name: handler.to_checkpoint() for name, handler in self._handlers.items()}
        return {"handled": handled, "plain": super().to_checkpoint()}

    def from_checkpoint(self, kept: Any) -> None:  # noqa: ANN401 - as above
        """Set all to what was in a file.

        Raises:
            CheckpointError: the attributes have other names, or one cannot be loaded.
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
        """Of each object that has a course, which one."""
        courses = ((name, handler.describe_course()) for name, handler in self._handlers.items())
        return {name: course for name, course in courses if course is not None}

    def resume_course(self, course: Any, restore_random: Callable[[], None]) -> None:  # noqa: ANN401 - as above
        """See `State.resume_course`."""
        for name, own in course.items():
            self._handlers[name].resume_course(own, restore_random)

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
