"""The part of `hvd.prepare` that both frameworks share: the order of its steps, a rank's share of data, its device.

A share is every size-th sample, equally many on all ranks.

Threads: the caller's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

from worker_runtime.engine import objects
from worker_runtime.errors import WrongArgumentError
from worker_runtime.membership.runtime import RUNTIME

T = TypeVar("T")

_ORDER = "prepare.order"  # the name of the broadcast


def count_share(total: int, ranks: int) -> int:
    """The number of samples of each rank's share, padding included."""
    return -(-total // ranks)


def share_order(order: Sequence[T], rank: int, size: int) -> list[T]:
    """One rank's share of a sequence, padded from the beginning of the sequence."""
    places = range(rank, count_share(len(order), size) * size, size)
    return [order[place % len(order)] for place in places]


def share_stream(stream: Iterable[T], rank: int, size: int) -> Iterator[T]:
    """One rank's share of a stream of any length, padded from its last samples."""
    rest = iter(stream)
    while group := list(islice(rest, size)):
        yield group[rank % len(group)]


class RankOrder:
    """A sampler that gives each rank its share of the order that rank 0's sampler draws.

    The order is broadcast before the first sample of each pass, so all ranks must start each pass together.

    Args:
        sampler: gives indices; it may draw a different order on each rank.
    """

    def __init__(self, sampler: Iterable[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        own = list(self.sampler)  # on all ranks, so that their random generators stay equal
        order: list[int] = objects.broadcast_object(RUNTIME.engine, own, 0, _ORDER)
        numbers = RUNTIME.assignment
        yield from share_order(order, numbers.rank, numbers.size)

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"object of type {type(self.sampler).__name__!r} has no len()")
        return count_share(len(self.sampler), RUNTIME.assignment.size)


class DataNotSplitError(WrongArgumentError):
    """The data cannot be split automatically among the ranks.

    Cause: `hvd.prepare()` cannot see how the dataset or its loader chooses samples.
    Remedy: Split the data by `hvd.rank()` in the script.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"the data cannot be split among the ranks: {reason}; {remedy}")


class SchedulerExistsError(WrongArgumentError):
    """The learning rate cannot be scaled, because a scheduler will set it again.

    Cause: The learning-rate scheduler was created before `hvd.prepare()`.
    Remedy: Create it afterwards.
    """

    def __init__(self, remedy: str) -> None:
        super().__init__(f"the learning rate can no longer be scaled, since a scheduler has stored it; {remedy}")


class NoDeviceError(ValueError):
    """This host has more workers than GPUs.

    Cause: More workers than GPUs run on this host.
    Remedy: Start one worker for each GPU, or pass `pin_device=False`.
    """

    def __init__(self, local_rank: int, count: int) -> None:
        super().__init__(
            f"there is no GPU for the worker of local rank {local_rank}: it sees {count} GPUs; start at most {count} "
            "workers on each host, or choose the device in the script and pass pin_device=False to hvd.prepare()"
        )


def run_steps(
    model: Any,
    optimizer: Any,
    data: Any,
    *,
    split: Callable[[Any], Any] | None,
    pin: Callable[[Any], object] | None,
    scale: Callable[[Any], None] | None,
    wrap: Callable[[Any, Any], Any] | None,
    broadcast: Callable[[Any, Any], None] | None,
) -> Any:
    """Run the steps after `init()`, and return the model alone or a tuple (model, optimizer, data) without the Nones.

    A step that is None is skipped.

    Args:
        model: the model.
        optimizer: its optimizer, or None.
        data: its loader, or None.
        split: returns a loader that gives each rank its share of the data.
        pin: makes this worker use its own device.
        scale: multiplies the learning rate by the number of workers.
        wrap: returns an optimizer that averages the model's gradients.
        broadcast: sends rank 0's parameters and optimizer state to all ranks.
    """
    if data is not None and split is not None:
        data = split(data)  # first, since it may raise: nothing has changed by then
    if pin is not None:
        pin(model)
    if optimizer is not None and scale is not None:
        scale(optimizer)
    if optimizer is not None and wrap is not None:
        optimizer = wrap(model, optimizer)
    if broadcast is not None:
        broadcast(model, optimizer)
    prepared = tuple(each for each in (model, optimizer, data) if each is not None)
    if len(prepared) > 1:
        return prepared
    return model


def follow_size(state: Any, name: str, multiply: Callable[[float], None]) -> None:
    """Make a scaled learning rate follow the number of workers.

    Args:
        state: the elastic state.
        name: its attribute that says for how many workers the rate is scaled.
        multiply: multiplies the learning rate.
    """
    state.register(**{name: RUNTIME.assignment.size})

    def rescale() -> None:
        multiply(RUNTIME.assignment.size / getattr(state, name))
        setattr(state, name, RUNTIME.assignment.size)

    state.register_reset_callbacks([rescale])


def choose_device(count: int, local_rank: int) -> int:
    """The index of a worker's device: its local rank, or 0 if it sees one device only, as some batch systems arrange.

    Args:
        count: the number of devices that this worker sees.
        local_rank: this worker's local rank.

    Raises:
        NoDeviceError: the local rank has no device.
    """
    if count == 1:
        return 0
    if local_rank >= count:
        raise NoDeviceError(local_rank, count)
    return local_rank
