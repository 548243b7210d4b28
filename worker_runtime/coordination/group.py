"""The torch process group of one generation, formed from a membership.

It is a `ProcessGroupGloo` and not torch's default group, so that a program can still call `init_process_group()`. The
members meet in a store of the generation's sequencer.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from worker_runtime.coordination.link import Link
from worker_runtime.coordination.store import SequencerStore
from worker_runtime.errors import GroupFormationError, InitializationError
from worker_runtime.groups.backends.choice import GLOO_ALONE, Choice, compose
from worker_runtime.groups.gloo import Gloo, UnknownPeerError
from worker_runtime.groups.reachability import Reachability
from worker_runtime.groups.torch_groups import ALL_RANKS, Interruptible, TorchGroup, TorchGroups
from worker_runtime.rendezvous import Endpoint, Membership, RendezvousError

# The time limit of one collective. Ranks may be minutes apart for good reasons (rank 0 writes a checkpoint), and agents
# notice lost workers; this limit only makes every wait finite.
OPERATION_LIMIT = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class Group:
    """The connected workers of one generation.

    generation: the number of the generation.
    torch_groups: the torch groups, one for each process set.
    sequencer: the address and port of the sequencer.
    key: the generation's key, which members and sequencer prove to each other.
    """

    generation: int
    rank: int
    size: int
    torch_groups: TorchGroups
    sequencer: Endpoint
    key: bytes = field(repr=False)


class Cancellation:
    """Cancels one attempt to form a group, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._is_cancelled = False

    def cover(self, end: Callable[[], None]) -> None:
        """Register a function that `cancel` calls, perhaps repeatedly; call it now if already cancelled."""
        with self._lock:
            self._ends.append(end)
            is_cancelled = self._is_cancelled
        if is_cancelled:
            end()

    def cancel(self) -> None:
        """Make every wait fail soon."""
        with self._lock:
            self._is_cancelled = True
            ends = list(self._ends)
        for end in ends:
            end()


def form(
    membership: Membership,
    await_sequencer: Callable[[int], Endpoint],
    address: str,
    limit: timedelta,
    operation_limit: timedelta = OPERATION_LIMIT,
    *,
    choice: Choice = GLOO_ALONE,
    cancellation: Cancellation | None = None,
) -> Group | None:
    """Connect to the other members of a generation; None for a generation of one.

    Args:
        membership: this worker's ranks, and the generation's key.
        await_sequencer: waits until the sequencer of a generation listens, and returns its address and port.
        address: the address or host name of this worker for the other members; nothing listens elsewhere.
        limit: how long to wait for the other members.
        operation_limit: the time limit of each later collective.
        choice: the backends.
        cancellation: cancels the waits for other members.

    Raises:
        GroupFormationError: the members could not all connect in time, or this was cancelled.
        CanaryError: the backend failed its test.
        RendezvousError: there is no sequencer.
    """
    if membership.assignment.size == 1:
        return None

    failure: Exception
    try:
        return _connect(
            membership,
            await_sequencer,
            address,
            limit,
            operation_limit=operation_limit,
            choice=choice,
            cancellation=cancellation or Cancellation(),
        )
    # The frames of the errors' tracebacks would keep gloo's threads alive, see `await_works`.
    except (RendezvousError, InitializationError) as error:
        failure = error.with_traceback(None)
    except (RuntimeError, OSError) as error:
        failure = GroupFormationError(membership, address, limit, str(error))
    raise failure


def _connect(
    membership: Membership,
    await_sequencer: Callable[[int], Endpoint],
    address: str,
    limit: timedelta,
    *,
    operation_limit: timedelta,
    choice: Choice,
    cancellation: Cancellation,
) -> Group:
    """Connect to the other members; see `form`."""
    numbers = membership.assignment
    deadline = time.monotonic() + limit.total_seconds()
    sequencer = await_sequencer(membership.generation)
    store = SequencerStore(sequencer, membership.key, membership.generation, numbers.rank, limit)
    cancellation.cover(store.cancel)
    gloo = Gloo(store, store.compare, address, operation_limit)
    make_group = compose(choice, gloo, numbers)

    def make(prefix: str, rank: int, size: int, device: str, limit: timedelta) -> tuple[TorchGroup, Interruptible]:
        try:
            return make_group(prefix, rank, size, device, limit)
        finally:
            store.disconnect()

    torch_groups = TorchGroups(numbers.rank, make)
    try:
        with Reachability(store, numbers.rank, numbers.size, address, _until(deadline).total_seconds()) as members:
            try:
                torch_groups.find(ALL_RANKS, tuple(range(numbers.size)), limit=_until(deadline))
            except UnknownPeerError:
                raise  # unknown peers may hold the members' listeners too: the probes of those would blame the network
            except RuntimeError:
                members.raise_unreached()  # or raise what says more
                raise
    finally:
        store.disconnect()
    return Group(membership.generation, numbers.rank, numbers.size, torch_groups, sequencer, membership.key)


def connect(group: Group, limit: timedelta) -> Link:
    """Connect a member of a generation to its sequencer.

    Raises:
        SequencerError: the sequencer was unreachable for the limit. The group is closed.
    """
    try:
        link = Link.connect(group.sequencer, group.key, group.generation, group.rank, limit)
        if group.rank == 0:
            link.hand_over(os.environ)
    except BaseException:
        group.torch_groups.close()
        raise
    return link


def _until(deadline_seconds: float) -> timedelta:
    """The rest of a time limit, at least half a second: gloo treats a limit of zero as no limit."""
    return timedelta(seconds=max(0.5, deadline_seconds - time.monotonic()))
