"""What is to be done now, told by `membership.step`: imperatives, each safe to carry out twice."""

from dataclasses import dataclass

from rendezvous.core.model import Assignment, Endpoint, Generation, Worker
from rendezvous.core.outcome import SIGTERM, Outcome
from rendezvous.core.reports import Decision, Verdict


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

    is_loss: it is given up, which is news; else what has led to it was told already.
    signal: which comes first; SIGINT is followed by SIGTERM at half of the grace.
    """

    worker: Worker
    grace_seconds: float
    reason: str
    is_loss: bool = False
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

    is_drained: it was left because of a stop notice, though it may be listed still.
    """

    host: str
    reason: str
    is_drained: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """A stop notice is heeded: say so; one for the whole job (host None) every agent is told, now and later."""

    host: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell every member of the generation where its store listens."""

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


Effect = Launch | Terminate | Publish | Interrupt | OfferResize | Announce | Refuse | Depart | Dismiss | Notify | Finish
