"""Whether this process can have the threads and the memory that gRPC needs: without them gRPC ends the process."""

import resource
import threading

from hvdrun.errors import LimitTooLowError

_THREADS = 16  # of a launcher or an agent: nine, and processes that it starts
_KIBIBYTES = 1024 * 1024  # of addresses: stacks and arenas of threads reserve much that is never used


def refuse_scarcity(program: str) -> None:
    """Refuse to go on where this program may not have what it needs.

    Threads are tried: their number is limited for a user, a control group and a machine, and each counts others too.

    Raises:
        LimitTooLowError: it may not.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < _KIBIBYTES * 1024:
        needed, limit = f"{_KIBIBYTES} KiB of addresses", f"`ulimit -v` is {soft // 1024}"
        raise LimitTooLowError(program, needed, limit, "raise it, or set it in the command that hvdrun runs")
    end = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(_THREADS):
            thread = threading.Thread(target=end.wait, name="hvdrun-scarcity", daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # Python names no reason
        remedy = "raise `ulimit -u`, `ulimit -v`, or pids.max of the control group, or end other processes of this user"
        raise LimitTooLowError(program, f"{_THREADS} threads", f"can start only {len(started)}", remedy) from error
    finally:
        end.set()
        for thread in started:
            thread.join()
