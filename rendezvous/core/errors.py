"""What the pure core refuses: an event that cannot have happened, a job that does not fit."""

from collections.abc import Iterable

from rendezvous.core.model import Host


class CoreError(Exception):
    """Base of all errors of the core."""


class IllegalEventError(CoreError):
    """An event that contradicts the state: a fault of the shell or of a peer. The state is unchanged."""

    def __init__(self, event: object, reason: str) -> None:
        super().__init__(f"{type(event).__name__} is not possible here: {reason}")  # a report may list thousands
        self.event = event


class TooFewSlotsError(CoreError):
    """The hosts offer fewer slots than the job needs at least."""

    def __init__(self, hosts: Iterable[Host], needed: int) -> None:
        self.hosts = tuple(hosts)
        self.needed = needed
        self.offered = sum(host.slots for host in self.hosts)
        offers = ", ".join(f"{host.name}:{host.slots}" for host in self.hosts) or "no host at all"
        super().__init__(f"{needed} workers do not fit into {self.offered} slots ({offers})")
