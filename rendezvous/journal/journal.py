"""The journal: what a server has decided, so that the next server continues where it has stopped."""

from typing import Protocol

from rendezvous.core.state import State


class Journal(Protocol):
    """The journal of one job, open in one server.

    term: which start of the server this is, counted from 1. It is durable before the journal is open.
    """

    @property
    def term(self) -> int:
        """The number of this start of the server."""

    def read(self) -> State | None:
        """The state that the former server has written last, as this one starts with it; None if there is none."""

    async def write(self, state: State) -> None:
        """Make a state durable, with all that came before it; nothing is written where nothing was decided.

        Raises:
            JournalError: it is not durable, so that its effects may not be performed.
        """

    def get(self, name: str) -> bytes | None:
        """The value that `put` has kept under this name; None if there is none."""

    def put(self, name: str, value: bytes) -> None:
        """Make a value durable that belongs to the job and not to its state, such as its secret.

        Raises:
            JournalError: it is not durable.
        """

    async def close(self) -> None:
        """Close the journal, so that another server may open it."""
