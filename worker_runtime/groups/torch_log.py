"""Keeps from standard error what torch's C++ warns of and nobody can do anything about.

torch looks up, for its log alone, the name of the address of every connection to a TCPStore (see `resolver`), and warns
on each worker that "the hostname of the client socket cannot be retrieved" where no name server knows it. The warning
comes from threads of torch's own, so the level of its log is raised for all of them.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_LIBRARY = Path(torch.__file__).parent / "lib" / "libc10.so"
_LEVEL = "FLAGS_caffe2_log_level"  # what TORCH_CPP_LOG_LEVEL sets
_WARNING, _ERROR = 1, 2


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
