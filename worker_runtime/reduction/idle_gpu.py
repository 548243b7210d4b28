"""The warning about a GPU that stands idle: the model has stayed on the CPU."""

import warnings

import torch

from worker_runtime.collectives.combination import find_stack_level
from worker_runtime.reduction.parameters import TrackedParameters

_STEPS = 20  # enough to know that the model stays where it is
_TEXT = (
    "this worker sees a GPU, and the first {} steps have reduced gradients on the CPU alone; move the model and its "
    "batches to the GPU: model.to(hvd.pin_device())"
)


class IdleGpuWatch:
    """Warns once, if the first steps of an optimizer reduce gradients on the CPU alone while there is a GPU.

    Args:
        tracked: the optimizer's parameters.
    """

    def __init__(self, tracked: TrackedParameters) -> None:
        self._tracked = tracked
        self._steps_left = _STEPS

    def count_step(self, *, is_first: bool) -> None:
        """Count a step that was reduced.

        Args:
            is_first: this rank is the first of its set; the others do not warn.
        """
        if self._steps_left == 0:
            return
        self._steps_left -= 1
        if self._steps_left or not is_first or any(entry.parameter.is_cuda for entry in self._tracked.entries):
            return
        # This mostly asks NVML, which leaves CUDA as it is.
        if torch.cuda.device_count():
            warnings.warn(_TEXT.format(_STEPS), stacklevel=find_stack_level())
