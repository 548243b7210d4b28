"""What `hvd.prepare` does in every framework: the order of its steps, each rank's share of the data, and its device.

In come a framework's own steps and what the program gave. Out comes that, prepared. Each share is every size-th sample,
equally many on all ranks.

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
    """How many of so many samples each rank gets, padding included."""
    return -(-total // ranks)


def deal(order: Sequence[T], rank: int, size: int) -> list[T]:
    """One rank's share of a sequence; what is missing at the end is taken from the beginning once more."""
    places = range(rank, count_share(len(order), size) * size, size)
    return [order[place % len(order)] for place in places]


def share_stream(stream: Iterable[T], rank: int, size: int) -> Iterator[T]:
    """One rank's share of a stream of any length; what is missing at the end is taken from the last few once more."""
    rest = iter(stream)
    while group := list(islice(rest, size)):
        yield group[rank % len(group)]


class RankOrder:
    """A sampler of which each rank gets its share: rank 0 draws the order of each pass, whatever the sampler is.

    All ranks begin each pass together, since the order is broadcast then.

    Args:
        sampler: gives indices; the ranks' own ones may draw different orders.
    """

    def __init__(self, sampler: Iterable[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        own = list(self.sampler)  # on all ranks, so that their random generators stay in step
        order: list[int] = objects.broadcast_object(RUNTIME.engine, own, 0, _ORDER)
        numbers = RUNTIME.assignment
        return iter(deal(order, numbers.rank, numbers.size))

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"object of type {type(self.sampler).__name__!r} has no len()")
        return count_share(len(self.sampler), RUNTIME.assignment.size)


class DataNotSplitError(WrongArgumentError):
    """Nobody but the program can tell which part of this data is a rank's.

    Cause: `hvd.prepare()` cannot see how the dataset or its loader chooses samples.
    Remedy: Split the data by `hvd.rank()` in the script.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"the data cannot be split among the ranks: {reason}; {remedy}")


class SchedulerExistsError(WrongArgumentError):
    """A learning rate is to be scaled that a scheduler has noted already, and will set again.

    Cause: The learning-rate scheduler was made before `hvd.prepare()`.
    Remedy: Make it afterwards.
    """

    def __init__(self, remedy: str) -> None:
        super().__init__(f"the learning rate cannot be scaled any more, since a scheduler has noted it; {remedy}")


class NoDeviceError(ValueError):
    """There are more workers on this host than devices.

    Cause: More workers than GPUs run on this host.
    Remedy: Start one worker for each GPU, or pass `pin_device=False`.
    """

    def __init__(self, local_rank: int, count: int) -> None:
        super().__init__(
            f"there is no GPU for the worker of local rank {local_rank}, since it sees {count}; start at most {count} "
            "workers on each host, or choose the device in the script and pass pin_device=False to hvd.prepare()"
        )


def run_steps(
    model: Any,  # noqa: ANN401 - of the framework
    optimizer: Any,  # noqa: ANN401 - of the framework
    data: Any,  # noqa: ANN401 - of the framework
    *,
    split: Callable[[Any], Any] | None,
    pin: Callable[[Any], object] | None,
    scale: Callable[[Any], None] | None,
    wrap: Callable[[Any, Any], Any] | None,
    broadcast: Callable[[Any, Any], None] | None,
) -> Any:  # noqa: ANN401 - of the framework
    """Make the steps, in a job that was joined, and return what was given: one object, or a tuple in that order.

    Args:
        model: what is trained.
        optimizer: None where there is none.
        data: its loader; None where there is none.
        split: gives a loader of which each rank gets its share of the data; None, as all steps, to leave it out.
        pin: lets this worker use its own device.
        scale: multiplies the learning rate by the number of workers.
        wrap: gives an optimizer of the model that averages gradients.
        broadcast: gives all ranks the parameters of rank 0 and, where there is an optimizer, its state.
    """
    if data is not None and split is not None:
        data = split(data)  # first, since it may refuse: nothing has changed by then
    if pin is not None:
        pin(model)
    if optimizer is not None and scale is not None:
        scale(optimizer)
    if optimizer is not None and wrap is not None:
        optimizer = wrap(model, optimizer)
    if broadcast is not None:
        broadcast(model, optimizer)
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
