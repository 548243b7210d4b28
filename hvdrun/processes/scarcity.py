"""Whether this process can have the threads and the memory that gRPC needs: without them gRPC ends the process."""

import resource

from hvdrun.errors import LimitTooLowError
from rendezvous.server.threads import count_startable

THREADS = 16  # of a launcher or an agent: nine, and processes that it starts
_KIBIBYTES = 1024 * 1024  # of addresses: stacks and arenas of threads reserve much that is never used


def refuse_scarcity(program: str, threads: int = THREADS) -> None:
    """Refuse to go on where this program may not have what it needs.

    Raises:
        LimitTooLowError: it may not.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < _KIBIBYTES * 1024:
        needed, limit = f"{_KIBIBYTES} KiB of addresses", f"`ulimit -v` is {soft // 1024}"
        raise LimitTooLowError(program, needed, limit, "raise it, or set it in the command that hvdrun runs")
    if (startable := count_startable(threads)) < threads:
        remedy = "raise `ulimit -u`, `ulimit -v`, or pids.max of the control group, or end other processes of this user"
        raise LimitTooLowError(program, f"{threads} threads", f"can start only {startable}", remedy)
