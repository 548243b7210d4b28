"""`python -m worker_runtime.coordination.sequencer ADDRESS`: fixes the order of the collectives of its generations.

It binds ADDRESS on a free port, writes `{"port": N}` and a line feed to standard output, and reads orders from standard
input, one a line: an activation `{"generation": 3, "size": 4, "key": "<64 hexadecimal digits>"}`, or `stop` after a
stop notice for the job. It exits with code 0 at the end of standard input, which means that its owner has ended, and
with 1 and a message on standard error when it cannot serve.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

from worker_runtime.coordination.sequencer.orders import OrderError, Orders
from worker_runtime.coordination.sequencer.server import Server

# Signals whose default ends a process, and that show no fault of it: those of `hvdrun/startup/early.py`, which this
# package must not import, and those that hvdrun passes on.
FOR_THE_OWNER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGSTKFLT,
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
_BACKLOG = 1024
_STANDARD_INPUT = 0
_GARBAGE = 50_000  # new objects before a garbage collection: this process creates hardly any cycles


def main() -> int:
    """Serve until the owner has ended; return the exit code."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in FOR_THE_OWNER:  # a scheduler signals all processes: the workers need this one while they save
        signal.signal(number, signal.SIG_IGN)

    if len(sys.argv) != 2:  # noqa: PLR2004 - the program's name, and one argument
        _complain("one argument was expected: the address to listen on")
        return 2

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # this process multiplies no matrices
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # the hard limit may exceed the kernel's present one (fs.nr_open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # handshakes cost files too
    gc.freeze()
    gc.set_threshold(_GARBAGE)

    try:
        with listen(sys.argv[1]) as listener:
            print(json.dumps({"port": listener.getsockname()[1]}), flush=True)  # noqa: T201 - the owner reads it
            Server(listener, Orders(_STANDARD_INPUT), _report).run()
    except (OSError, OrderError) as error:
        _complain(f"cannot serve on {sys.argv[1]}: {error}")
        return 1
    return 0


def listen(address: str) -> socket.socket:
    """Listen on a free port of an address: IPv4, IPv6 or a name, whose first local address is used.

    Raises:
        OSError: it is not an address of this host.
    """
    error: OSError | None = None
    for family, kind, protocol, _, name in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(name)
            listener.listen(_BACKLOG)
        except OSError as refused:
            listener.close()
            error = refused
        else:
            return listener
    raise error or OSError(f"{address} is not an address")


def _report(line: bytes) -> None:
    """Write a line to the owner, who reads all that comes."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _complain(text: str) -> None:
    sys.stderr.write(f"sequencer: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
