"""A store of torch's own, for backends that use one from their own threads, as NCCL and UCC do.

Rank 0 of a group opens it on a free port of its address and shows the others where it is. It answers every peer that
reaches that port. It is never used again: restarted workers that read a former group's keys would meet dead addresses.

torch looks up, for its log alone, the name of the address of every connection to a TCPStore. Where no name server knows
it, each worker warns that "the hostname of the client socket cannot be retrieved", from threads of torch's own; and
where the name server loses questions, each costs the resolver's patience: 5 s, twice.
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
_PATIENCE_SECONDS = 1  # the least that glibc knows
_QUESTIONS = 3
_INITIALIZED = 1  # RES_INIT

# Opens the store of a group, given a name for the group, this worker's rank in it, and how long to wait for rank 0.
OpenStore: TypeAlias = Callable[[str, int, timedelta], Store]


def open_torch_store(meeting: Store, address: str, name: str, rank: int, limit: timedelta) -> Store:
    """The store of a group's members.

    Args:
        meeting: where rank 0 writes its address.
        address: on which the others reach this worker.
        name: of the group, used once.
        rank: of this worker in the group.
        limit: how long to wait for it.

    Raises:
        RuntimeError: it was not reached in time.
        OSError: rank 0 cannot listen on its address.
    """
    if rank:
        meeting.wait([name], limit)
        port, _, address = meeting.get(name).decode().partition(" ")
        with brief_lookups(), without_warnings():
            return TCPStore(address, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    # torch would listen on all interfaces, so it is given a socket that is bound already. No other process can take the
    # port between bind and listen, since the socket is never closed in between.
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
    """Within it, torch's C++ logs errors alone, unless the user has asked for more than warnings."""
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
    """The level of torch's log in this process; None where this build keeps it elsewhere."""
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(_LIBRARY)), _LEVEL)
    except (OSError, ValueError):
        return None


class _State(ctypes.Structure):
    """The beginning of glibc's `struct __res_state`, which is a part of its ABI."""

    _fields_ = (("retrans", ctypes.c_int), ("retry", ctypes.c_int), ("options", ctypes.c_ulong))


@contextmanager
def brief_lookups() -> Iterator[None]:
    """Within it, this thread asks a name server again after a second, three times at least; a lower setting stays.

    The patience is a setting of each thread's own in glibc (`resolver(3)`: retrans and retry), or in none, as in musl.
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
    """This thread's; None where there is no such thing."""
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
