"""How many files a process may have open, while it serves strangers as well.

Whoever can reach a port can open connections, a thousand idle ones if he likes, and the usual soft limit of 1,024 would
then be reached: nothing could be opened any more. So each program of a job raises its soft limit to the hard one.
"""

import resource
from contextlib import suppress

_SHARE = 3  # of the files, for one address: a launcher listens on two at most, and needs some itself
_MOST_CONNECTIONS = 10_000  # more than any job has hosts; each costs memory


def raise_file_limit() -> None:
    """Allow this process, and what it starts from now on, all the files that it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # the hard limit is above what the kernel allows by now (fs.nr_open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def count_connections() -> int:
    """How many connections one address may take, so that files are left for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, soft // _SHARE)
