"""The steps that distribute a training, in their order, whatever the framework; and what they refuse."""

from dataclasses import dataclass
from typing import Any, Protocol

from worker_runtime.errors import WrongArgumentError


class DataNotSplitError(WrongArgumentError):
    """Nobody but the program can tell which part of this data is a rank's."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"the data cannot be split among the ranks: {reason}; {remedy}")


class SchedulerExistsError(WrongArgumentError):
    """A learning rate is to be scaled that a scheduler has noted already, and will set again."""

    def __init__(self, remedy: str) -> None:
        super().__init__(f"the learning rate cannot be scaled any more, since a scheduler has noted it; {remedy}")


class NoDeviceError(ValueError):
    """There are more workers on this host than devices."""

    def __init__(self, local_rank: int, count: int) -> None:
        super().__init__(
            f"there is no GPU for the worker of local rank {local_rank}, since it sees {count}; start at most {count} "
            "workers on each host, or choose the device in the script and pass pin_device=False to hvd.prepare()"
        )


@dataclass(frozen=True, slots=True)
class Switches:
    """Which of the steps are made."""

    pin_device: bool
    scale_lr: bool
    wrap_optimizer: bool
    broadcast: bool
    split_data: bool


class Framework(Protocol):
    """How each step is made in one framework."""

    def pin(self, model: Any) -> None:  # noqa: ANN401 - of the framework
        """Let this worker use its own device."""

    def scale(self, optimizer: Any) -> None:  # noqa: ANN401 - of the framework
        """Multiply the learning rate by the number of workers."""

    def wrap(self, model: Any, optimizer: Any) -> Any:  # noqa: ANN401 - of the framework
        """An optimizer that averages gradients."""

    def broadcast(self, model: Any, optimizer: Any) -> None:  # noqa: ANN401 - of the framework
        """Give all ranks the parameters of rank 0 and, where there is an optimizer, its state."""

    def split(self, data: Any) -> Any:  # noqa: ANN401 - of the framework
        """A loader that gives each rank its share of the data."""


def run_steps(framework: Framework, switches: Switches, model: Any, optimizer: Any, data: Any) -> Any:  # noqa: ANN401 - of the framework
    """Make the steps, in a job that was joined, and return what was given: one object, or a tuple in that order.

    Args:
        framework: makes the steps.
        switches: which of them.
        model: what is trained.
        optimizer: None where there is none.
        data: its loader; None where there is none.
    """
    if data is not None and switches.split_data:
        data = framework.split(data)  # first, since it may refuse: nothing has changed by then
    if switches.pin_device:
        framework.pin(model)
    if optimizer is not None and switches.scale_lr:
        framework.scale(optimizer)
    if optimizer is not None and switches.wrap_optimizer:
        optimizer = framework.wrap(model, optimizer)
    if switches.broadcast:
        framework.broadcast(model, optimizer)
    prepared = tuple(each for each in (model, optimizer, data) if each is not None)
    return prepared if len(prepared) > 1 else model


def choose_device(count: int, local_rank: int) -> int:
    """The number of a worker's device; a device that is the only one to be seen is the worker's, as batch systems do.

    Args:
        count: how many devices this worker sees.
        local_rank: this worker's number on its host.

    Raises:
        NoDeviceError: there is none for this worker.
    """
    if count == 1:
        return 0
    if local_rank >= count:
        raise NoDeviceError(local_rank, count)
    return local_rank
