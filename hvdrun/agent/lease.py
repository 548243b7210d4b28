"""How long an agent may go on without a word from the server; held while the launcher is suspended on purpose."""

import time


class Lease:
    """One agent's lease."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._renewed = time.monotonic()
        self._is_held = False

    @property
    def has_expired(self) -> bool:
        """The server may have counted this host as lost."""
        return not self._is_held and time.monotonic() - self._renewed > self.seconds

    def renew(self) -> None:
        """The server has acknowledged a report."""
        self._renewed = time.monotonic()

    def hold(self, *, held: bool) -> None:
        """Stop the clock, or start it anew: the launcher was suspended by its user, and comes back."""
        self._is_held = held
        self.renew()
