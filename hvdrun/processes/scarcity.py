"""Whether this process can have what a launcher or an agent needs of its machine.

Without threads, memory or open files gRPC ends the process.
"""

import errno
import os
import resource
import socket

from hvdrun.errors import LimitTooLowError, LoopbackDownError, ProcHiddenError
from rendezvous.server.threads import count_startable

THREADS = 16  # of a launcher or an agent: nine, and processes that it starts
FILES = 64  # of either, without those of workers; gRPC alone needs two dozen
_KIBIBYTES = 1024 * 1024  # of addresses: stacks and arenas of threads reserve much that is never used
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


def refuse_scarcity(program: str, threads: int = THREADS) -> None:
    """Refuse to go on where this program may not have what it needs.

    Raises:
        LimitTooLowError: a limit is too low.
        ProcHiddenError: /proc cannot be read.
        LoopbackDownError: this host cannot reach itself.
    """
    _refuse_limits(program)
    _refuse_missing_proc(program)
    _refuse_missing_loopback(program)
    if (startable := count_startable(threads)) < threads:
        remedy = "raise `ulimit -u`, `ulimit -v`, or pids.max of the control group, or end other processes of this user"
        raise LimitTooLowError(program, f"{threads} threads", f"can start only {startable}", remedy)


def _refuse_limits(program: str) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < _KIBIBYTES * 1024:
        needed, limit = f"{_KIBIBYTES} KiB of addresses", f"`ulimit -v` is {soft // 1024}"
        raise LimitTooLowError(program, needed, limit, "raise it, or set it in the command that hvdrun runs")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        raise LimitTooLowError(program, f"{FILES} open files", f"`ulimit -Hn` is {soft}", "raise it")


def _refuse_missing_proc(program: str) -> None:
    try:
        os.stat(f"/proc/{os.getpid()}/stat")  # noqa: PTH116 - a Path reports nothing else
    except OSError as error:
        raise ProcHiddenError(program, os.strerror(error.errno or 0)) from error


def _refuse_missing_loopback(program: str) -> None:
    """Connect a datagram socket, which sends nothing, but needs a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))
        except OSError as error:
            if error.errno in _NO_ROUTE:
                raise LoopbackDownError(program, os.strerror(error.errno)) from error
