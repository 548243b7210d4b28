"""The handler of a Module."""

from collections.abc import Callable
from typing import Any

import mxnet as mx

from worker_runtime.elastic.states import check_names
from worker_runtime.errors import CheckpointError
from worker_runtime.mxnet.deferred import copy_to_all
from worker_runtime.mxnet.elastic.handlers import Arrays, ArraysHandler, OptimizerHandler
from worker_runtime.mxnet.functions import broadcast_parameters


class ModuleHandler(ArraysHandler):
    """Saves a Module or a BucketingModule: parameters, auxiliary values and the optimizer.

    Args:
        value: the module.
    """

    def __init__(self, value: mx.mod.BaseModule) -> None:
        self._optimizer = OptimizerHandler(value)
        super().__init__(value)

    def save(self) -> None:
        """Copy the arrays, and what the optimizer has."""
        super().save()
        self._optimizer.save()

    def restore(self) -> None:
        """Restore what `save()` saved last, and forget the gradients."""
        super().restore()
        self._note_change()
        self.reset()
        self._optimizer.restore()

    def reset(self) -> None:
        """Set gradients that accumulate to zero: those of an interrupted step would be added to the next one's."""
        group = self._module._exec_group  # noqa: SLF001 - get_params() has no gradients
        # There are none without training.
        for name, arrays in zip(group.param_names, group.grad_arrays or [], strict=False):
            if group.grad_req[name] == "add":
                for array in arrays:
                    array[:] = 0

    def sync(self) -> None:
        """Broadcast the state of rank 0."""
        all_arrays = self.list_all()
        firsts = {name: arrays[0] for name, arrays in all_arrays.items()}
        broadcast_parameters(firsts, root_rank=0, prefix=f"elastic.{self.name}.")
        for name, arrays in all_arrays.items():
            copy_to_all(firsts[name], arrays)
        self._note_change()
        self._optimizer.sync()

    def set_value(self, value: Any) -> None:
        """Handle another module."""
        self._optimizer.value = value
        super().set_value(value)

    def to_checkpoint(self) -> Any:
        """Return the saved arrays, and what the optimizer has."""
        return {"arrays": super().to_checkpoint(), "optimizer": self._optimizer.to_checkpoint()}

    def from_checkpoint(self, kept: Any) -> Any:
        """Load them."""
        all_arrays = self.list_all()
        check_names(kept["arrays"], all_arrays)
        for name, values in kept["arrays"].items():
            if values.shape != all_arrays[name][0].shape:
                raise CheckpointError(f"it has {name} of shape {values.shape}, not {all_arrays[name][0].shape}")
            copy_to_all(mx.nd.array(values, dtype=values.dtype), all_arrays[name])
        self._note_change()
        self._optimizer.from_checkpoint(kept["optimizer"])
        return self.value

    def get_extra_state(self) -> Any:
        """See `OptimizerHandler`."""
        return self._optimizer.get_extra_state()

    def load_extra_state(self, extra: Any, restore_random: Callable[[], None]) -> None:
        """See `OptimizerHandler`."""
        self._optimizer.load_extra_state(extra, restore_random)

    def list_all(self) -> Arrays:
        """The arrays with which the module computes."""
        group = self._module._exec_group  # noqa: SLF001 - get_params() makes copies
        return {
            **dict(zip(group.param_names, group.param_arrays, strict=True)),
            **dict(zip(group.aux_names, group.aux_arrays, strict=True)),
        }

    def _note_change(self) -> None:
        """Make `get_params()` copy the arrays."""
        self.value._params_dirty = self._module._params_dirty = True  # noqa: SLF001 - as `update()` does

    @property
    def _module(self) -> mx.mod.Module:
        """The module; of a BucketingModule the one with all parameters."""
        value = self.value
        is_bucketing = isinstance(value, mx.mod.BucketingModule)
        return value._buckets[value._default_bucket_key] if is_bucketing else value  # noqa: SLF001 - nothing else has it
