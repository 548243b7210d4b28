"""How long a question to the network's name server may take that nobody needs the answer of.

torch looks up, for its log alone, the name of the address of every connection to a TCPStore. An address that no file of
the system names is asked of the name server, and where that loses one question in twenty, or is not there, each costs
the resolver's patience: 5 s, twice. A generation would be formed only then.

The patience is a setting of each thread's own in glibc (`resolver(3)`: retrans and retry), or in none, as in musl.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE_SECONDS = 1  # the least that glibc knows
_QUESTIONS = 3
_INITIALIZED = 1  # RES_INIT


class _State(ctypes.Structure):
    """The beginning of glibc's `struct __res_state`, which is a part of its ABI."""

    _fields_ = (("retrans", ctypes.c_int), ("retry", ctypes.c_int), ("options", ctypes.c_ulong))


@contextmanager
def brief_lookups() -> Iterator[None]:
    """Within it, this thread asks again after a second, three times at least; who has set less keeps that."""
    state = _find_state()
    if state is None:
        yield
        return
    before = state.retrans, state.retry
    state.retrans, state.retry = min(state.retrans, _PATIENCE_SECONDS), max(state.retry, _QUESTIONS)
    try:
        yield
    finally:
        state.retrans, state.retry = before


def _find_state() -> _State | None:
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
