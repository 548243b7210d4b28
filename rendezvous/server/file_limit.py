"""The limit of open files of a process that listens on a port.

Any program that reaches the port can open a thousand idle connections. That would reach the usual soft limit of 1,024,
and the process could open nothing else. So each program of a job raises its soft limit to the hard one.
"""

import resource
from contextlib import suppress

_SHARE = 3  # one address may take a third: a launcher listens on two at most, and needs files itself
_MOST_CONNECTIONS = 10_000  # more than any job has hosts; each costs memory


def raise_file_limit() -> None:
    """Raise the soft limit of this process, and of those that it starts later, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # the hard limit is above fs.nr_open, which may have been lowered since
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def count_connections() -> int:
    """How many connections one address may take, so that enough files are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, soft // _SHARE)
