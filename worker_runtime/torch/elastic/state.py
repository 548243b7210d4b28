"""The state of a PyTorch training: models, optimizers and samplers, each with a handler, and plain objects."""

from typing import Any

import torch

from worker_runtime.api.basics import rank
from worker_runtime.api.functions import broadcast_object
from worker_runtime.elastic.handled import HandledState
from worker_runtime.elastic.handlers import SamplerStateHandler, StateHandler
from worker_runtime.elastic.parts import list_parts
from worker_runtime.errors import WrongArgumentError
from worker_runtime.torch.elastic.handlers import (
    REGISTRY,
    ModelStateHandler,
    OptimizerStateHandler,
    get_handler_registry,
    set_handler_registry,
)
from worker_runtime.torch.sharding import refuse_part

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]  # Horovod's names

_TRAINED = (
    "the state's {} is or has a tensor that requires gradients, and restore() would make another one; make it a "
    "torch.nn.Parameter of a module, and give the module"
)


class TorchState(HandledState):
    """The state of a PyTorch training, for `elastic.run`.

    You can give modules, optimizers, `ElasticSampler`s, and all other objects with a state_dict (learning rate
    schedulers, a GradScaler) under any keyword: their state_dicts are saved. Other values must be picklable. Each
    object becomes an attribute. If you assign another object to an attribute, the state saves that one from then on.
    What is missing in a state_dict, as the counts of a metric of torchmetrics, does not return to a commit.

    Args:
        model: a module.
        optimizer: a plain or distributed optimizer.
        **kwargs: more attributes and their values.

    Raises:
        ValueError: a value is a container of modules, say, or a tensor that is trained: it needs a name, or a module;
            or torch.distributed divides it among the ranks, as FSDP does with an optimizer's state.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(lambda value: broadcast_object(value, root_rank=0), rank, REGISTRY)
        self.register(model=model, optimizer=optimizer, **kwargs)

    def check_plain(self, name: str, value: Any) -> None:
        """See `HandledState.check_plain`; refuses tensors that are trained, or lie on several ranks, too.

        Raises:
            ValueError: it is or has one.
        """
        super().check_plain(name, value)
        for part in (part for _, part in list_parts(value) if isinstance(part, torch.Tensor)):
            refuse_part(part)
            if part.is_leaf and part.requires_grad:
                raise WrongArgumentError(_TRAINED.format(name))
