"""What goes into `membership.step` and what comes out of it: events, effects, and errors.

Events say what has happened, in past participles. Effects say what is to be done now, in imperatives; each is safe to
carry out twice. An error refuses an event that cannot have happened, or a job that does not fit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rendezvous.core.model import Assignment, Endpoint, Generation, Host, Worker
from rendezvous.core.outcome import SIGTERM, Outcome
from rendezvous.core.reports import Decision, Report, Verdict


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
    """A worker asks to be in a generation newer than `after` (0 when it was in none yet), and tells of itself."""

    worker: Worker
    after: int = 0
    report: Report = Report()  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class Declared:
    """A worker has entered a function that begins again after an exception: from now on a lost member is replaced.

    needs_state: it was taken in later, and has not yet received the others' state; when it has, it declares that.
    """

    worker: Worker
    needs_state: bool = False


@dataclass(frozen=True, slots=True)
class SequencerOpened:
    """The sequencer of a generation, on the host of its rank 0, listens at this endpoint."""

    host: str
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


Event = (
    HostsChanged | Begun | Reported | Joined | Declared | SequencerOpened | Exited | Lost | Noticed | Stopped | Ticked
)


class Level(StrEnum):
    """How much a sentence matters to a person."""

    DEBUG = "debug"  # shown on request
    INFO = "info"
    WARNING = "warning"  # something was lost


@dataclass(frozen=True, slots=True)
class Log:
    """Tell a person: one sentence without a full stop."""

    sentence: str
    level: Level = Level.INFO


@dataclass(frozen=True, slots=True)
class Launch:
    """Start this worker, unless this incarnation has been started already.

    is_late: others train already: it prepares itself alone, and joins when it enters the function that begins again.
    """

    worker: Worker
    assignment: Assignment  # the first one, for the environment; the generation's is the truth
    reason: str
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Terminate:
    """End this worker and its process tree: a signal, then SIGKILL after the grace; no grace kills at once.

    signal: which comes first; SIGINT is followed by SIGTERM at half of the grace.
    """

    worker: Worker
    grace_seconds: float
    reason: str
    signal: int = SIGTERM


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell every member that this generation is formed, with its numbers (in rank order) and what all do now."""

    generation: Generation
    assignments: tuple[Assignment, ...]
    reason: str
    verdict: Verdict = Verdict(Decision.BEGIN)  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Tell every member that the generation cannot go on: all stop, and join again with a report."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class OfferResize:
    """Tell every member that at its next commit the generation may be formed anew.

    number: grows with each offer of the job.
    adds: workers wait to be taken in.
    removes: members are on slots that are no longer offered. Neither: the last offer is withdrawn.
    """

    generation: int
    number: int
    adds: bool
    removes: bool


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Let the agent of this host go: none of its workers is left, or it was lost. A later Launch needs a new one.

    level: a warning where the host was lost.
    is_drained: it was left because of a stop notice, though it may be listed still.
    """

    host: str
    reason: str
    level: Level = Level.DEBUG
    is_drained: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """A stop notice is heeded: say so; one for the whole job (host None) every agent is told, now and later."""

    host: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell every member of the generation where its sequencer listens."""

    generation: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell a worker that waits to join that it will never be in a generation."""

    worker: Worker
    reason: str


@dataclass(frozen=True, slots=True)
class Depart:
    """Tell the members of the generation that this one has ended well: what needs it cannot complete any more."""

    generation: int
    worker: Worker
    rank: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over."""

    outcome: Outcome


Effect = (
    Launch
    | Terminate
    | Publish
    | Interrupt
    | OfferResize
    | Announce
    | Refuse
    | Depart
    | Dismiss
    | Notify
    | Log
    | Finish
)
