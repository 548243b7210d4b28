"""A torch TCPStore, for backends that use a store from their own threads: NCCL and UCC.

Rank 0 of a group opens it on a free port of its address, and publishes the port. It answers every peer that reaches the
port. Each group has a new one: restarted workers would read the dead addresses of a former group.

torch looks up the host name of every connection to a TCPStore, only for its log. Without a name, each worker warns that
"the hostname of the client socket cannot be retrieved", from torch's threads. If a name server drops requests, each
lookup waits for the resolver's timeout: 5 s, twice.
"""

import ctypes
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import torch
from torch._C._distributed_c10d import Store, TCPStore  # torch.distributed has no types for them

_LIBRARY = Path(torch.__file__).parent / "lib" / "libc10.so"
_LEVEL = "FLAGS_caffe2_log_level"  # what TORCH_CPP_LOG_LEVEL sets
_WARNING, _ERROR = 1, 2
_PATIENCE_SECONDS = 1  # glibc's minimum
_QUESTIONS = 3
_INITIALIZED = 1  # RES_INIT

# Opens the store of a group, given a name of the group, this worker's rank in it, and the time limit.
OpenStore: TypeAlias = Callable[[str, int, timedelta], Store]


def open_torch_store(meeting: Store, address: str, name: str, rank: int, limit: timedelta) -> Store:
    """Open the store of a group's members.

    Args:
        meeting: the store in which rank 0 publishes its address.
        address: this worker's address for the others.
        name: a unique name of the group.
        rank: this worker's rank in the group.
        limit: the time limit.

    Raises:
        RuntimeError: the store was unreachable for the time limit.
        OSError: rank 0 cannot listen on its address.
    """
    if rank:
        meeting.wait([name], limit)
        port, _, address = meeting.get(name).decode().partition(" ")
        with brief_lookups(), without_warnings():
            return TCPStore(address, int(port), is_master=False, wait_for_workers=False, timeout=limit)

    # torch would listen on all interfaces, so it gets a bound socket. No other process can take the port between bind
    # and listen, since the socket stays open.
    family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        listener.bind(where)
        port = listener.getsockname()[1]
        with brief_lookups(), without_warnings():
            store = TCPStore(
                address,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=limit,
                master_listen_fd=listener.fileno(),
            )
        listener.detach()  # the store owns and closes it

    meeting.set(name, f"{port} {address}")
    return store


@contextmanager
def without_warnings() -> Iterator[None]:
    """A context in which torch's C++ logs only errors, unless the user has set another level than the default."""
    level = _find_level()
    if level is None or level.value != _WARNING:
        yield
        return
    level.value = _ERROR
    try:
        yield
    finally:
        level.value = _WARNING


def _find_level() -> ctypes.c_int | None:
    """The variable with torch's log level; None if the library of this build of torch lacks it."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(_LIBRARY)), _LEVEL)
    except (OSError, ValueError):
        return None


class _State(ctypes.Structure):
    """The first fields of glibc's `struct __res_state`, which is part of its ABI."""

    _fields_ = (("retrans", ctypes.c_int), ("retry", ctypes.c_int), ("options", ctypes.c_ulong))


@contextmanager
def brief_lookups() -> Iterator[None]:
    """A context in which this thread repeats DNS requests after at most a second, at least three times.

    In glibc these are settings of each thread (`resolver(3)`: retrans and retry); musl has none.
    """
    state = _find_resolver()
    if state is None:
        yield
        return
    before = state.retrans, state.retry
    state.retrans, state.retry = min(state.retrans, _PATIENCE_SECONDS), max(state.retry, _QUESTIONS)
    try:
        yield
    finally:
        state.retrans, state.retry = before


def _find_resolver() -> _State | None:
    """The resolver state of this thread; None without glibc."""
    library = ctypes.CDLL(None)
    try:
        initialize, find = library.__res_init, library.__res_state  # noqa: SLF001 - glibc's, by their names
    except AttributeError:
        return None
    find.restype = ctypes.POINTER(_State)
    state: _State = find().contents
    if not state.options & _INITIALIZED and initialize() != 0:
        return None
    return state
