"""What the thread that recovers hears, from its executor, its formations and the rendezvous, one at a time."""

from dataclasses import dataclass
from typing import TypeAlias

from worker_runtime.membership.formation import Formation
from worker_runtime.rendezvous import Interrupted, Membership, ResizeOffered


@dataclass(frozen=True, slots=True)
class Trouble:
    """This worker has noticed that the generation cannot go on."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The next generation was published."""

    formation: Formation
    membership: Membership


@dataclass(frozen=True, slots=True)
class Connected:
    """Its members are connected."""

    formation: Formation


@dataclass(frozen=True, slots=True)
class Failed:
    """It came to nothing; nor will another, if that is final."""

    formation: Formation
    error: Exception
    is_final: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """This worker leaves the job."""


FormationNews: TypeAlias = Joined | Connected | Failed
News: TypeAlias = Trouble | Interrupted | ResizeOffered | FormationNews | Closed
