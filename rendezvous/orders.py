"""What a launcher tells an agent on its standard input, and what comes back on its standard output.

Of the orders, `Launch` and `Terminate` are the core's effects themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rendezvous.core.effects import Launch, Terminate
from rendezvous.core.model import Endpoint, Worker
from rendezvous.credentials import Credential


@dataclass(frozen=True, slots=True)
class Begin:
    """Everything an agent needs to know of the job; comes first and once.

    job: the job's identity, random and not secret.
    host: this host's name in the job.
    server: address:port of the rendezvous server.
    command, directory, environment: of every worker; the environment in bytes, as an operating system has it.
    address: where the workers of other hosts reach this host.
    master: where rank 0 may open a torch store of its own; None asks this host to reserve a port for it.
    stdin_rank: which worker reads hvdrun's standard input, by the rank of its placement; None for nobody.
    prefork: workers may be forked from a process that has imported what they need.
    """

    job: str
    host: str
    server: str
    credential: Credential = field(repr=False)
    command: tuple[str, ...]
    directory: str
    environment: Mapping[bytes, bytes] = field(repr=False)
    lease_seconds: float
    start_timeout_seconds: float
    address: str
    master: Endpoint | None = None
    stdin_rank: int | None = None
    prefork: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """The job is over: send what output is left, and go."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The launcher is being suspended by its user, or goes on: its silence meanwhile is no death."""

    held: bool


@dataclass(frozen=True, slots=True)
class Input:
    """The next piece of hvdrun's standard input, for the worker that reads it; an empty one is the end."""

    data: bytes


Order = Begin | Launch | Terminate | Release | Hold | Input


class OutputStream(IntEnum):
    """Which of a worker's streams; the numbers are file descriptors."""

    STDOUT = 1
    STDERR = 2


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes exactly as a worker wrote them."""

    worker: Worker
    stream: OutputStream
    data: bytes


@dataclass(frozen=True, slots=True)
class Remark:
    """What the agent itself has to say to whoever asked hvdrun to be verbose; one sentence."""

    text: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """This agent, of rank 0's host, keeps a port free for a torch store that a worker may open there."""

    master: Endpoint


@dataclass(frozen=True, slots=True)
class Taken:
    """The worker that reads hvdrun's standard input can take the next piece."""


Telling = Output | Remark | Reserved | Taken
