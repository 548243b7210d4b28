"""What an agent that comes by itself says to the launcher at the door, and what it is answered."""

from dataclasses import dataclass, field
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """An agent's wish to join, and all that it says of itself.

    version: of hvdrun there.
    secret: of the token.
    host: the name that its host is to have in the job.
    slots: 0 for a connection of this host's agent to the rendezvous, by the same door.
    tunnel: the port of that host's loopback address where such connections begin.
    """

    version: str
    secret: bytes = field(repr=False)
    host: str
    slots: int
    tunnel: int = 0


class Admission(IntEnum):
    """What becomes of the wish."""

    ACCEPTED = 1
    REFUSED = 2
    NOT_NEEDED = 3


@dataclass(frozen=True, slots=True)
class AgentAdmitted:
    """The answer.

    reason: a sentence, empty for an agent that is accepted.
    exit_code: what an agent ends with that is not needed.
    """

    admission: Admission
    reason: str = ""
    exit_code: int = 0
