"""How many files this process may have open, while it serves strangers as well.

Whoever can reach the port can open connections, a thousand idle ones if he likes, and the usual soft limit of 1,024
would then be reached: nothing could be opened any more, for the agents or for the launcher itself. So the soft limit is
raised to the hard one for as long as the server is open; what this process starts meanwhile inherits it.
"""

import resource

_SHARE = 3  # of the files, for one address: a launcher listens on two at most, and needs some itself
_MOST_CONNECTIONS = 10_000  # more than any job has hosts; each costs memory


class FileLimit:
    """The soft limit on open files, which can be raised and put back."""

    def __init__(self) -> None:
        self._former: int | None = None

    def raise_to_hard(self) -> None:
        """Allow this process all the files that it may have; a second time changes nothing."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self._former is None and soft != hard:
            self._former = soft
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def put_back(self) -> None:
        """Make the limit what it was."""
        if self._former is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._former, hard))
            self._former = None


def count_connections() -> int:
    """How many connections one address may take, so that files are left for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, soft // _SHARE)
