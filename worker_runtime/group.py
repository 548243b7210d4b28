"""The torch process group of one generation: formed from a membership, closed without leaving anything behind.

It is a bare `ProcessGroupGloo` and not torch's default group, so that the user's own `init_process_group()` stays
possible. Its store is opened by rank 0 on a free port of the address that the other hosts reach, and is never reused:
restarted workers that read an old generation's keys would meet dead addresses.
"""

import ctypes
import socket
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    PrefixStore,
    ProcessGroupGloo,
    Store,
    TCPStore,
)  # torch.distributed has no types for them

from worker_runtime.connections import Connections, list_sockets
from worker_runtime.errors import GroupFormationError
from worker_runtime.membership import Endpoint, Membership

# The time limit of one collective. Ranks may legitimately be minutes apart (rank 0 writes a checkpoint), and the loss
# of a worker is noticed by its agent, so this is only the backstop that makes every wait finite.
OPERATION_LIMIT = timedelta(minutes=30)


class Work(Protocol):
    """One piece of communication under way (torch's Work)."""

    def wait(self, timeout: timedelta = ...) -> bool:
        """Wait for its end; raises RuntimeError when it failed or did not end within `timeout`."""

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""


class TorchGroup(Protocol):
    """What is used of torch's ProcessGroupGloo, whose methods torch leaves untyped."""

    def allreduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> Work:
        """Combine in place."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Overwrite with the root's values."""

    def allgather(self, output_tensors: list[torch.Tensor], input_tensor: torch.Tensor) -> Work:
        """Collect tensors of one shape."""

    def barrier(self) -> Work:
        """Complete when all ranks have called it."""

    def shutdown(self) -> None:
        """Stop its threads."""

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later operations."""


class StoreExchange(Protocol):
    """How the members of a generation tell each other where rank 0's store is."""

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Announce rank 0's store."""

    def await_store(self, generation: int) -> Endpoint:
        """Wait until rank 0 has announced its store."""


@dataclass(slots=True)
class Group:
    """The connected workers of one generation.

    torch_group: for collectives; None once closed.
    """

    rank: int
    size: int
    torch_group: TorchGroup | None
    _store: Store | None
    _connections: Connections = field(repr=False)

    def interrupt(self) -> None:
        """Make pending collectives raise at once, here and in the peers, by ending the connections between them.

        gloo's own abort does not wake a pending operation.
        """
        self._connections.shut_down()

    def close(self) -> None:
        """End connections, threads and descriptors. No collective may be pending."""
        torch_group, self.torch_group, self._store = self.torch_group, None, None
        if torch_group is not None:
            torch_group.shutdown()
        self._connections.forget()

    def abandon(self) -> None:
        """Never destroy the group: its destructor would wait for threads that do not end, or are a parent's.

        That is a leak on purpose, of one group, in a process that is about to end or to be replaced.
        """
        torch_group, self.torch_group = self.torch_group, None
        if torch_group is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch_group))
        self._connections.forget()


def form(
    membership: Membership,
    exchange: StoreExchange,
    address: str,
    limit: timedelta,
    operation_limit: timedelta = OPERATION_LIMIT,
) -> Group | None:
    """Connect to the other members of a generation; None for a generation of one.

    Args:
        membership: this worker's numbers.
        exchange: where rank 0 announces its store.
        address: the address or host name on which the other members reach this worker; nothing listens elsewhere.
        limit: how long to wait for the other members.
        operation_limit: the time limit of each later collective.

    Raises:
        GroupFormationError: the members could not all connect in time.
        RendezvousError: the store could not be announced or was not announced.
    """
    if membership.assignment.size == 1:
        return None
    try:
        return _connect(membership, exchange, address, limit, operation_limit)
    except (RuntimeError, OSError) as error:
        cause = str(error)  # not the error itself: the frames in its traceback hold threads of gloo, see `await_works`
    raise GroupFormationError(membership, address, limit, cause)


def _connect(
    membership: Membership, exchange: StoreExchange, address: str, limit: timedelta, operation_limit: timedelta
) -> Group:
    """Connect to the other members; see `form`."""
    numbers = membership.assignment
    deadline = _Deadline.after(limit)
    if numbers.rank == 0:
        store, endpoint = _open_store(address, limit)
        exchange.open_store(membership.generation, endpoint)
    else:
        endpoint = exchange.await_store(membership.generation)
        store = TCPStore(
            endpoint.address, endpoint.port, is_master=False, wait_for_workers=False, timeout=deadline.left()
        )
    present = list_sockets()
    gloo: Any = ProcessGroupGloo  # typed incompletely
    options = gloo._Options()  # noqa: SLF001 - torch's only way to choose the device
    options._devices = [gloo.create_device(hostname=address)]  # noqa: SLF001 - the same
    options._timeout = deadline.left()  # noqa: SLF001 - the same
    prefixed = PrefixStore(f"hvd/generation/{membership.generation}", store)
    torch_group: TorchGroup = gloo(prefixed, numbers.rank, numbers.size, options)
    connections = Connections.appeared_since(present, expected=numbers.size - 1, store_port=endpoint.port)
    # Nobody leaves before all are connected: from here on the store is not needed, and rank 0 may go at any time.
    torch_group.barrier().wait()
    torch_group._set_default_timeout(operation_limit)  # noqa: SLF001 - torch's only way to change it
    return Group(numbers.rank, numbers.size, torch_group, prefixed, connections)


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
