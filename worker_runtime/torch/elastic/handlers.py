"""The handlers of PyTorch's objects, which save, restore and synchronize them, and put them into checkpoints.

Copies are in the host's memory. A copy overwrites the earlier one where it fits: that takes a sixth of the time of a
copy into new memory, which the kernel must allocate and clear (100 MB: 9 ms instead of 57), and needs no memory for a
second copy.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeGuard

import torch
from torch.utils.data import Sampler

from worker_runtime.elastic import handlers, sampler
from worker_runtime.elastic.copies import copy_nested
from worker_runtime.elastic.handlers import AttributeCheck, Registry, SamplerStateHandler, Stateful
from worker_runtime.torch.functions import broadcast_model, broadcast_optimizer_state
from worker_runtime.torch.loading import load_checked, load_optimizer_state
from worker_runtime.torch.optimizer import find_reducer
from worker_runtime.torch.proxies import unwrap
from worker_runtime.torch.sharding import refuse_part, refuse_parts_of_optimizer


class StatefulHandler(handlers.StatefulHandler):
    """Saves an object by its state_dict, with the tensors in the host's memory."""

    @staticmethod
    def copy(value: Any, earlier: Any = None) -> Any:
        """See `copy_to_host`."""
        return copy_to_host(value, earlier)


class ModelStateHandler(StatefulHandler):
    """Saves a module: its parameters, buffers and all else in its state_dict."""

    def sync(self) -> None:
        """Broadcast the tensors in place and the rest as one object."""
        broadcast_model(self.value, root_rank=0)


class OptimizerCheck(AttributeCheck):
    """Looks for a list of groups, too: another object, such as a metric of ignite, may have attributes of all names."""

    def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805 - of a metaclass
        return super().__instancecheck__(instance) and isinstance(getattr(instance, "param_groups", None), list)


class OptimizerLike(Stateful, metaclass=OptimizerCheck):
    """An optimizer, maybe of a class that is not derived from torch's.

    names: the attributes of such an object.
    """

    names = (*Stateful.names, "step", "zero_grad")


class OptimizerStateHandler(StatefulHandler):
    """Saves a plain or distributed optimizer: its options and its state.

    Args:
        value: the optimizer.
    """

    def __init__(self, value: Any) -> None:
        refuse_parts_of_optimizer(value)
        super().__init__(value)

    def set_value(self, value: Any) -> None:
        """Handle another optimizer in place of the present one."""
        refuse_parts_of_optimizer(value)
        super().set_value(value)

    def sync(self) -> None:
        """Broadcast the options and the state of rank 0 without running a step."""
        broadcast_optimizer_state(self.value, root_rank=0)

    def restore(self) -> None:
        """Load a copy of the saved state_dict, the state with its own dtypes."""
        load_checked(self.value, self.copy(self._saved))

    def reset(self) -> None:
        """Clear the gradients: those of an interrupted step would be added to the next one's."""
        self.value.zero_grad()

    def from_checkpoint(self, kept: Any) -> Any:
        """Load into the plain optimizer: loading into a distributed one is a collective, and only rank 0 loads."""
        load_optimizer_state(unwrap(self.value), kept)
        return self.value

    def get_extra_state(self) -> Any:
        """Return a distributed optimizer's plan of gradient buckets."""
        reducer = find_reducer(self.value)
        if reducer is None:
            return None
        return reducer.plan_inputs

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:
        """Use this plan of gradient buckets."""
        del restore_random
        reducer = find_reducer(self.value)
        if reducer is not None:
            reducer.resume(extra)


class ScalerStateHandler(StatefulHandler):
    """Saves a gradient scaler: its scale."""

    def reset(self) -> None:
        """End the interrupted step: a scaler unscales an optimizer's gradients once between two calls of `update()`."""
        with suppress(AssertionError):  # the scaler has scaled no loss yet
            self.value.update(self.value.get_scale())


class ElasticSampler(sampler.ElasticSampler, Sampler[int]):
    """The elastic sampler for a torch DataLoader; see `worker_runtime.elastic.sampler.ElasticSampler`.

    Args:
        dataset: the data set; only its length is used.
        shuffle: use a random order, a new one in each epoch, the same on all ranks.
        seed: the seed of the random order.
    """


REGISTRY = Registry(
    [
        (torch.nn.Module, ModelStateHandler),
        (OptimizerLike, OptimizerStateHandler),
        (sampler.ElasticSampler, SamplerStateHandler),
        (torch.amp.GradScaler, ScalerStateHandler),
        (Stateful, StatefulHandler),
    ]
)
get_handler_registry, set_handler_registry = REGISTRY.get_handler_registry, REGISTRY.set_handler_registry


def copy_to_host(value: Any, earlier: Any = None) -> Any:
    """A copy whose tensors are in the host's memory.

    Args:
        value: tensors in dicts, lists and tuples, and other objects, which are deep-copied.
        earlier: an earlier copy; its tensors are overwritten and used again where their form is the same.
    """
    return copy_nested(value, earlier, torch.Tensor, _copy_tensor)


def _copy_tensor(given: torch.Tensor, earlier: object) -> torch.Tensor:
    refuse_part(given)
    tensor = given.detach()
    if _fits(earlier, tensor):
        return earlier.copy_(tensor)
    return tensor.to("cpu", copy=True)


def _fits(earlier: object, tensor: torch.Tensor) -> TypeGuard[torch.Tensor]:
    """Whether copying the tensor into the earlier one gives the same as a new copy."""
    return (
        type(tensor) is torch.Tensor
        and type(earlier) is torch.Tensor
        and not (tensor.is_quantized or earlier.is_inference())
        and tensor.layout is earlier.layout is torch.strided
        and (tensor.dtype, tensor.shape, tensor.stride()) == (earlier.dtype, earlier.shape, earlier.stride())
    )
