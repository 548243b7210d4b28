"""The torch process group of one generation: formed from a membership, closed without leaving anything behind.

It is a bare `ProcessGroupGloo` and not torch's default group, so that the user's own `init_process_group()` stays
possible. Its store is opened by rank 0 on a free port of the address that the other hosts reach, and is never reused:
restarted workers that read an old generation's keys would meet dead addresses. Through it rank 0 also tells where the
generation's sequencer is, of which it hears while gloo connects; the key that proves its members stays out of it.
"""

import socket
import time
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Protocol, Self

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed has no types for them

from worker_runtime.errors import GroupFormationError, InitializationError
from worker_runtime.groups.backends.choice import GLOO_ALONE, Choice
from worker_runtime.groups.backends.composite import compose
from worker_runtime.groups.cancellation import Cancellation
from worker_runtime.groups.connections import list_sockets, shut_down_to
from worker_runtime.groups.doors import Door
from worker_runtime.groups.gloo import Gloo
from worker_runtime.groups.resolver import brief_lookups
from worker_runtime.groups.torch_groups import ALL_RANKS, TorchGroups
from worker_runtime.groups.torch_log import without_warnings
from worker_runtime.rendezvous import Endpoint, Membership, RendezvousError

# The time limit of one collective. Ranks may legitimately be minutes apart (rank 0 writes a checkpoint), and the loss
# of a worker is noticed by its agent, so this is only the backstop that makes every wait finite.
OPERATION_LIMIT = timedelta(minutes=30)

_SEQUENCER = "sequencer"  # in the generation's store: its port and address, or
_NONE = "none: "  # and a sentence


class StoreExchange(Protocol):
    """How the members of a generation tell each other where rank 0's store is."""

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Announce rank 0's store."""

    def await_store(self, generation: int) -> Endpoint:
        """Wait until rank 0 has announced its store."""

    def await_sequencer(self, generation: int) -> Endpoint:
        """On rank 0: wait until the generation has a sequencer; raises RendezvousError where it will have none."""


@dataclass(frozen=True, slots=True)
class Group:
    """The connected workers of one generation.

    generation: its number.
    torch_groups: for collectives, one for each process set.
    sequencer: where the process listens that orders the collectives.
    key: proves to it, and it to the members, who belongs to the generation.
    """

    generation: int
    rank: int
    size: int
    torch_groups: TorchGroups
    sequencer: Endpoint
    key: bytes = field(repr=False)


def form(
    membership: Membership,
    exchange: StoreExchange,
    address: str,
    limit: timedelta,
    operation_limit: timedelta = OPERATION_LIMIT,
    *,
    choice: Choice = GLOO_ALONE,
    cancellation: Cancellation | None = None,
) -> Group | None:
    """Connect to the other members of a generation; None for a generation of one.

    Args:
        membership: this worker's numbers, and the generation's key.
        exchange: where rank 0 announces its store, and hears of the sequencer.
        address: the address or host name on which the other members reach this worker; nothing listens elsewhere.
        limit: how long to wait for the other members.
        operation_limit: the time limit of each later collective.
        choice: through which backends tensors travel.
        cancellation: makes this fail soon, where the store is waited for; gloo's own connecting goes on to its limit.

    Raises:
        GroupFormationError: the members could not all connect in time, or it was cancelled.
        CanaryError: the backend that was chosen does not work.
        RendezvousError: the store could not be announced or was not announced, or there is no sequencer.
    """
    if membership.assignment.size == 1:
        return None
    failure: Exception
    try:
        with without_warnings():
            return _connect(
                membership,
                exchange,
                address,
                limit,
                operation_limit=operation_limit,
                choice=choice,
                cancellation=cancellation or Cancellation(),
            )
    # The frames in the errors' tracebacks hold threads of gloo, see `await_works`: they go no further.
    except (RendezvousError, InitializationError) as error:
        failure = error.with_traceback(None)
    except (RuntimeError, OSError) as error:
        failure = GroupFormationError(membership, address, limit, str(error))
    raise failure


def _connect(
    membership: Membership,
    exchange: StoreExchange,
    address: str,
    limit: timedelta,
    *,
    operation_limit: timedelta,
    choice: Choice,
    cancellation: Cancellation,
) -> Group:
    """Connect to the other members; see `form`."""
    numbers = membership.assignment
    deadline = _Deadline.after(limit)
    present = list_sockets()
    if numbers.rank == 0:
        store, endpoint = _open_store(address, limit)
        exchange.open_store(membership.generation, endpoint)
    else:
        endpoint = exchange.await_store(membership.generation)
        with brief_lookups():
            store = TCPStore(
                endpoint.address, endpoint.port, is_master=False, wait_for_workers=False, timeout=deadline.left()
            )
    cancellation.cover(partial(shut_down_to, endpoint.port, present))
    prefixed = PrefixStore(f"hvd/generation/{membership.generation}", store)
    gloo = Gloo(prefixed, address, endpoint.port, operation_limit)
    torch_groups = TorchGroups(numbers.rank, compose(choice, gloo.make, prefixed, numbers, operation_limit))
    with Door(prefixed, numbers.rank, numbers.size, address, deadline.left().total_seconds()) as door:
        try:
            torch_group = torch_groups.find(ALL_RANKS, tuple(range(numbers.size)), limit=deadline.left())
            is_first = numbers.rank == 0
            sequencer = _tell_sequencer(membership, exchange, prefixed) if is_first else _read_sequencer(prefixed)
            # Nobody leaves before all are connected: from here on the store is needed for further process sets alone.
            torch_group.barrier().wait(deadline.left())
        except RuntimeError:
            try:
                door.look_who_is_unreached()  # or raise what says more
                raise
            finally:
                torch_groups.interrupt()  # a barrier that is pending would be waited for with the group
    return Group(membership.generation, numbers.rank, numbers.size, torch_groups, sequencer, membership.key)


def _tell_sequencer(membership: Membership, exchange: StoreExchange, store: Store) -> Endpoint:
    """Wait for the sequencer, and tell the others where it is, or why there is none."""
    try:
        endpoint = exchange.await_sequencer(membership.generation)
    except RendezvousError as error:
        store.set(_SEQUENCER, f"{_NONE}{error}")
        raise
    store.set(_SEQUENCER, f"{endpoint.port} {endpoint.address}")
    return endpoint


def _read_sequencer(store: Store) -> Endpoint:
    """What rank 0 tells of it."""
    text = store.get(_SEQUENCER).decode()
    if text.startswith(_NONE):
        raise RendezvousError(text.removeprefix(_NONE))
    port, _, address = text.partition(" ")
    return Endpoint(address, int(port))


def _open_store(address: str, limit: timedelta) -> tuple[TCPStore, Endpoint]:
    """Serve a store on a free port of `address` alone.

    torch would listen on all interfaces, so it is given a socket that is bound already. Nobody else can take the port
    between bind and listen, since the socket is never closed in between.
    """
    family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.bind(where)
        port: int = listener.getsockname()[1]
        with brief_lookups():
            store = TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=limit,
                master_listen_fd=listener.fileno(),
            )
    except BaseException:
        listener.close()
        raise
    listener.detach()  # the store owns and closes it
    return store, Endpoint(address, port)


@dataclass(frozen=True, slots=True)
class _Deadline:
    """What is left of a time limit that several waits share."""

    at_seconds: float

    @classmethod
    def after(cls, limit: timedelta) -> Self:
        return cls(time.monotonic() + limit.total_seconds())

    def left(self) -> timedelta:
        # gloo takes a limit of zero for none, and cannot connect in less than this
        return timedelta(seconds=max(0.5, self.at_seconds - time.monotonic()))
