"""What a detached job keeps, so that another server of it continues where the last one was killed.

The journal has the state, and what else belongs to the job: the key of its authority, its secret, its network, and its
history. The guardian holds its ports. Where there can be no journal, as on a file server, the job ends with its server.
"""

import pickle
import secrets
import socket
from collections.abc import Callable
from typing import Any

from hvdrun.jobs.folder import JobFolder
from hvdrun.jobs.guardian import Life
from hvdrun.jobs.shown import Shown
from rendezvous.core.state import State
from rendezvous.journal.journal import Journal
from rendezvous.wire.notifications import KEY_BYTES

FOLDER = "journal"  # in that of the job
_AUTHORITY, _SECRET, _NETWORK, _HISTORY = "authority", "secret", "network", "history"


class Continuation:
    """What the present server of a detached job takes over from the one before it, and leaves to the next.

    Args:
        folder: of the job.
        life: which server it is.
        journal: of the job, open in this process.
        shown: the messages of agents that are in the log.

    state: where the job stands; None before it has begun.
    """

    def __init__(self, folder: JobFolder, life: Life, journal: Journal, shown: Shown) -> None:
        self.folder = folder
        self.life = life
        self.journal = journal
        self.shown = shown
        self.state: State | None = journal.read()

    @property
    def secret(self) -> bytes:
        """From which the keys of generations are made: a generation has the same key in each server."""
        return self._get_or_put(_SECRET, lambda: secrets.token_bytes(KEY_BYTES))

    def keep_authority(self, create: Callable[[], bytes]) -> bytes:
        """The key of the job's authority, which the first server creates; PEM."""
        return self._get_or_put(_AUTHORITY, create)

    @property
    def network(self) -> bytes | None:
        """The network of the job, as the former server has kept it."""
        return self.journal.get(_NETWORK)

    def keep_network(self, facts: bytes) -> None:
        """Keep the network of the job, before a host is told of it."""
        self.journal.put(_NETWORK, facts)

    def read_history(self) -> Any:
        """What a former server has kept of the job's history; None for nothing."""
        kept = self.journal.get(_HISTORY)
        return None if kept is None else pickle.loads(kept)  # noqa: S301 - the file is this user's alone

    def keep_history(self, history: Any) -> None:
        """Keep the history of the job."""
        self.journal.put(_HISTORY, pickle.dumps(history))

    def reserve(self, address: str) -> int:
        """A free port at this address, which the guardian keeps for all servers of the job.

        Raises:
            OSError: this machine does not have the address.
        """
        family, _, _, _, place = socket.getaddrinfo(
            address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family) as port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(place)
            self.life.keep(port)
            return int(port.getsockname()[1])

    def _get_or_put(self, name: str, create: Callable[[], bytes]) -> bytes:
        kept = self.journal.get(name)
        if kept is None:
            kept = create()
            self.journal.put(name, kept)
        return kept
