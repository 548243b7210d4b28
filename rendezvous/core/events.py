"""What can happen to a job, told to `membership.step`: past participles, facts only."""

from dataclasses import dataclass

from rendezvous.core.model import Endpoint, Host, Worker
from rendezvous.core.reports import Report


@dataclass(frozen=True, slots=True)
class HostsChanged:
    """The hosts that the job may use are these, in this order."""

    hosts: tuple[Host, ...]

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise ValueError(f"a host is named twice among {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class Begun:
    """A host's agent has been told of the job: its first lease begins. Told only of a host that can be cut off."""

    host: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A host's agent has told which workers are running there: a sign of life, and what orders are compared with."""

    host: str
    running: tuple[Worker, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker wishes to be in a generation newer than `after` (0 when it was in none yet), and tells of itself."""

    worker: Worker
    after: int = 0
    report: Report = Report()  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class Declared:
    """A worker has entered a function that begins again after an exception: from now on a lost member is replaced.

    is_blank: it was taken in later, and has not yet received the others' state; when it has, it declares that.
    """

    worker: Worker
    is_blank: bool = False


@dataclass(frozen=True, slots=True)
class StoreOpened:
    """Rank 0 of a generation serves torch's store at this endpoint."""

    worker: Worker
    generation: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker has ended, with its whole process tree, or has failed and said with what code it will end.

    returncode: as waitpid tells it: the exit code, or -n for signal n.
    error: why, in one sentence, where the code does not tell.
    cannot_start: its command could not be started at all, which trying again does not mend.
    """

    worker: Worker
    returncode: int
    error: str | None = None
    cannot_start: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A host's agent is gone, and with it its workers."""

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class Noticed:
    """A stop notice has come: this host, or (None) the whole job, is to end soon."""

    host: str | None


@dataclass(frozen=True, slots=True)
class Stopped:
    """Somebody asked the job to end; `at_once` leaves its workers no time."""

    exit_code: int
    reason: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Ticked:
    """The server's clock shows `now`, in seconds from an arbitrary start; it never goes back."""

    now: float


Event = HostsChanged | Begun | Reported | Joined | Declared | StoreOpened | Exited | Lost | Noticed | Stopped | Ticked
