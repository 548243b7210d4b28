"""The input and output of `membership.step`: events, effects, and errors.

An event, named by a past participle, has happened. An effect, named by an imperative, is to be performed now; each may
be performed twice. An error refuses an event that contradicts the state, or a job that does not fit the hosts.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeAlias

from rendezvous.core.model import Assignment, Endpoint, Generation, Host, Round, Worker
from rendezvous.core.outcome import SIGTERM, Blame, Outcome
from rendezvous.core.reports import Action, RecoveryDecision, Report


class CoreError(Exception):
    """Base of all errors of the core."""


class IllegalEventError(CoreError):
    """An event that contradicts the state: an error of the server or of a peer. The state is unchanged."""

    def __init__(self, event: object, reason: str) -> None:
        super().__init__(f"{type(event).__name__} is not possible here: {reason}")  # a report may list thousands
        self.event = event


class TooFewSlotsError(CoreError):
    """The hosts offer fewer slots than the job needs."""

    def __init__(self, hosts: Iterable[Host], needed: int) -> None:
        self.hosts = tuple(hosts)
        self.needed = needed
        self.offered = sum(host.slots for host in self.hosts)
        offers = ", ".join(f"{host.name}:{host.slots}" for host in self.hosts) or "no host at all"
        super().__init__(f"{needed} workers do not fit into {self.offered} slots ({offers})")


@dataclass(frozen=True, slots=True)
class HostsChanged:
    """The job may use these hosts, in this order."""

    hosts: tuple[Host, ...]

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if len(set(names)) < len(names):
            raise ValueError(f"a host is named twice among {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class Begun:
    """The launcher has configured a host's agent: its first lease begins. Submitted for hosts that can be cut off."""

    host: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A host's agent has reported its running workers: a heartbeat, with which lost orders are found."""

    host: str
    running: tuple[Worker, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker asks to be in a generation newer than `after` (0 if it was in none yet), with its report."""

    worker: Worker
    after: int = 0
    report: Report = Report()  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class Declared:
    """A worker has entered a function that is called again after an exception: from now on lost members are replaced.

    needs_state: it was added later, and has not received the others' state yet; when it has, it declares again.
    """

    worker: Worker
    needs_state: bool = False


@dataclass(frozen=True, slots=True)
class SequencerOpened:
    """The sequencer of a generation listens at this endpoint, on the host of rank 0."""

    host: str
    generation: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker has exited with its whole process tree, or has reported the code with which it will exit.

    returncode: as waitpid returns it: the exit code, or -n for signal n.
    error: why, in one sentence, if the code does not tell.
    cannot_start: its command could not be started; another try would fail, too.
    has_left: its program had ended without a failure before it was stopped.
    was_stopped: its agent had asked it to end before.
    message: why its program failed, as it has reported that (`@record`); "" if it has not.
    blame: which other part of the job made its program fail, as it has reported that.
    evidence: what the kernel of its host knows of its end, in whole sentences; "" for nothing.
    """

    worker: Worker
    returncode: int
    error: str | None = None
    cannot_start: bool = False
    has_left: bool = False
    was_stopped: bool = False
    message: str = ""
    blame: Blame | None = None
    evidence: str = ""

    @classmethod
    def before_start(cls, worker: Worker) -> Self:
        """The end of a worker whose start was ordered, and withdrawn in time."""
        return cls(worker, -SIGTERM, "it was stopped before it started", was_stopped=True)


@dataclass(frozen=True, slots=True)
class Lost:
    """A host's agent is lost, and its workers with it, or the job cannot use the host as it is.

    is_refused: the job cannot use it beside its other hosts.
    """

    host: str
    reason: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Noticed:
    """A stop notice has come: this host, or (None) the whole job, has to stop soon."""

    host: str | None


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal asks the agent of this host to end: it has passed it on to its workers, which have the grace to end."""

    host: str
    signal: int


@dataclass(frozen=True, slots=True)
class WorldOpened:
    """A process of rank 0 listens at the port of its round: the workers are a world of torch.distributed."""

    host: str


@dataclass(frozen=True, slots=True)
class SequencerLost:
    """The sequencer on this host has ended unexpectedly; how, in half a sentence."""

    host: str
    how: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The user or the launcher stops the job; `immediately` kills its workers without a grace."""

    exit_code: int
    reason: str
    immediately: bool = False


@dataclass(frozen=True, slots=True)
class Ticked:
    """The server's clock shows `now`, in seconds since an arbitrary start; it never goes back."""

    now: float


Event = (
    HostsChanged
    | Begun
    | Reported
    | Joined
    | Declared
    | SequencerOpened
    | Exited
    | Lost
    | Noticed
    | Signalled
    | WorldOpened
    | SequencerLost
    | Stopped
    | Ticked
)


class Level(StrEnum):
    """How important a sentence is to the user."""

    DEBUG = "debug"  # only with -v
    INFO = "info"
    WARNING = "warning"  # a worker or a host was lost
    ERROR = "error"  # the job fails

    def reaches(self, least: "Level") -> bool:
        """This level is at least as important as that one."""
        order = tuple(Level)
        return order.index(self) >= order.index(least)


@dataclass(frozen=True, slots=True)
class Log:
    """Print one sentence, without a full stop, for the user.

    host: the one that the sentence is about, where it is about one.
    """

    sentence: str
    level: Level = Level.INFO
    host: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Start this worker, unless this incarnation has been started already.

    is_late: the others train already. It starts alone, and joins when it enters its elastic function.
    round: with which it is started; None for a worker that is started alone, later.
    """

    worker: Worker
    assignment: Assignment  # for the environment; that of its generation may differ
    reason: str
    is_late: bool = False
    round: Round | None = None


@dataclass(frozen=True, slots=True)
class Terminate:
    """Stop this worker and its process tree: a signal, then SIGKILL after the grace; with no grace, SIGKILL only.

    signal: the first one; SIGINT is followed by SIGTERM at half of the grace.
    lets_save: only the worker itself gets the first signal, and its other processes SIGTERM at half of the grace: it
        may need them to save its state.
    """

    worker: Worker
    grace_seconds: float
    reason: str
    signal: int = SIGTERM
    lets_save: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    """Send every member its new generation: the assignments (in rank order) and the decision."""

    generation: Generation
    assignments: tuple[Assignment, ...]
    reason: str
    decision: RecoveryDecision = RecoveryDecision(Action.BEGIN)  # noqa: RUF009 - an immutable value may be shared


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Tell every member that the generation cannot continue: each suspends its operations, and joins with a report."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class OfferResize:
    """Tell every member that the job may be resized at its next commit.

    number: grows with each offer of the job.
    adds: workers wait to be added.
    removes: members are on slots that are no longer offered. If neither, the last offer is withdrawn.
    """

    generation: int
    number: int
    adds: bool
    removes: bool


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Release the agent of this host, which has no workers. A later Launch needs a new agent.

    tenure: which agent of the host, counted from 1. is_lost: the host was lost: kill what may be left of its agent.
    """

    host: str
    tenure: int
    reason: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """Print that a stop notice takes effect; send one for the whole job (host None) to every agent, now and later."""

    host: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell every member of the generation where its sequencer listens."""

    generation: int
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell a worker that waits to join that no generation will include it.

    leaves: the worker is no longer wanted, and is stopped: its end is not a failure.
    """

    worker: Worker
    reason: str
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Depart:
    """Tell the members that this one has exited with 0: operations that need it cannot complete."""

    generation: int
    worker: Worker
    rank: int


class Explanation(StrEnum):
    """How a person reads why the job has ended."""

    NONE = "nothing"
    SENTENCE = "sentence"
    WORKER_PAGE = "page of a worker"
    RECOVERY_PAGE = "page of a recovery"  # of a recovery that was not possible


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over.

    sentence: why, without a full stop; "" where nothing is printed, or the returncode of a worker says enough.
    culprit: what the outcome's worker failed because of, as a subject: another rank, or the sequencer; "" for nothing.
    stopped: the ranks that were stopped because of the outcome. notes: further sentences of the page.
    """

    outcome: Outcome
    explanation: Explanation = Explanation.NONE
    sentence: str = ""
    stopped: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    culprit: str = ""


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

Effects: TypeAlias = tuple[Effect, ...]


def describe(effect: Effect) -> Log | None:
    """What the user reads about an effect of the launcher; None for nothing, or for the pages of Finish."""
    match effect:
        case Log():
            return effect
        case Launch(worker, _, reason):
            return Log(f"launch {worker}: {reason}", Level.DEBUG)
        case Terminate(worker, _, reason):
            return Log(f"terminate {worker}: {reason}", Level.DEBUG)
        case Dismiss(host, _, reason, is_lost=False):
            return Log(f"the agent on {host} is released: {reason}", Level.DEBUG)
        case Notify(_, reason):
            return Log(reason)
        case _:
            return None
