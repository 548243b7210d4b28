"""What launcher and agent say to each other: at the door, then orders to the agent and messages from it.

An agent reads orders from its standard input and writes its messages to its standard output; one that comes by itself
uses the connection by which it has joined. Of the orders, `Launch` and `Terminate` are the core's effects themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import Endpoint, Worker
from rendezvous.wire import Filled

PlainValue = bool | int | float | str | None
SERVER_NAME = "rendezvous.hvdrun"


@dataclass(frozen=True, slots=True)
class Credential:
    """What one party of a job shows, and whom it trusts; PEM."""

    authority: bytes
    certificate: bytes
    private_key: bytes = field(repr=False)


def agent_identity(host: str, number: int = 1) -> str:
    """How a certificate names the agent of a host: a URI, hex-coded, since a host's name may hold any character.

    number: which agent of this host, counted from 1: one that was cut off and replaced may come back.
    """
    name = f"hvdrun:agent:{host.encode().hex()}"
    return name if number == 1 else f"{name}:{number}"


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """An agent asks to join, and says this of itself.

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
    """What becomes of an agent that asks to join."""

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


@dataclass(frozen=True, slots=True)
class Begin:
    """Everything an agent needs to know of the job; comes once.

    Only Wait, ListAddresses and ProbePeers come before it.

    job: the job's identity, random and not secret.
    host: this host's name in the job.
    server: address:port of the rendezvous server.
    command, directory, environment: of every worker; the environment in bytes, as an operating system has it.
    lease_seconds: how long this agent may be silent before it counts as lost.
    patience_seconds: how long the server may be silent before this agent ends its workers; infinite on its own machine.
    address: where the workers of other hosts reach this host.
    master: where rank 0 may open a torch store of its own; None asks this host to reserve a port for it.
    workers: what the launcher's options say of the workers, by the names that launcher and agent have for it.
    inherits: the environment lies over the agent's own, which a login on this host made.
    interface: the name, on this host, of the network interface that has `address`; empty when there is none to name.
    grace_seconds: how long a worker that has failed may take to end.
    """

    job: Filled[str]
    host: Filled[str]
    server: Filled[str]
    credential: Credential = field(repr=False)
    command: Filled[tuple[str, ...]]
    directory: str
    environment: Mapping[bytes, bytes] = field(repr=False)
    lease_seconds: float
    patience_seconds: float
    start_timeout_seconds: float
    address: str
    master: Endpoint | None = None
    workers: Mapping[str, PlainValue] = field(default_factory=dict)
    interface: str = ""
    inherits: bool = False
    grace_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Wait:
    """The job will begin, or not: wait on, but without a further order no longer than this; None: without a limit."""

    limit_seconds: float | None


@dataclass(frozen=True, slots=True)
class ListAddresses:
    """Find this machine's addresses, open a listener on each, and tell both.

    token: secret of this one survey, the same for all its participants.
    host: this host's name in the job.
    """

    token: Filled[bytes] = field(repr=False)
    host: Filled[str]


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A listener that another host says it has."""

    host: Filled[str]
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class ProbePeers:
    """Connect to each of these listeners, and tell which of them proved to be who they should be."""

    targets: tuple[ProbeTarget, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The job is over: send what output is left, and go.

    exit_code: what an agent that has come by itself ends with: the job's own, or that it may be started again.
    """

    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop notice has come for the job: its workers are to learn of it, all at the same step."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The launcher is being suspended by its user, or goes on: its silence meanwhile is no death."""

    held: bool


@dataclass(frozen=True, slots=True)
class Input:
    """The next piece of hvdrun's standard input, for the worker that reads it; an empty one is the end."""

    data: bytes


Order = Begin | Launch | Terminate | Release | Stop | Hold | Input | Wait | ListAddresses | ProbePeers


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
class Alert:
    """What every user should know; one sentence, without a full stop."""

    text: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """This agent, of rank 0's host, keeps a port free for a torch store that a worker may open there."""

    master: Endpoint


@dataclass(frozen=True, slots=True)
class Taken:
    """The worker that reads hvdrun's standard input can take the next piece."""


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent's first words, before it has read any order.

    version: of hvdrun there.
    hostname: what that machine calls itself.
    python: its version.
    """

    version: str
    hostname: str
    python: str


@dataclass(frozen=True, slots=True)
class Listening:
    """A listener on one address of a host, and what is known of the interface that has it.

    prefix: how many leading bits of the address name its subnet.
    speed: in Mbit/s; 0 where the interface does not tell.
    """

    interface: str
    endpoint: Endpoint
    prefix: int
    speed: int = 0


@dataclass(frozen=True, slots=True)
class Addresses:
    """What a host has, in answer to ListAddresses.

    cores: how many the agent, and so its workers, may use.
    token: of the survey that this answers.
    """

    addresses: tuple[Listening, ...]
    cores: int
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Proof:
    """The host that tells this has reached that address of that host.

    source: its own address, from which it went.
    milliseconds: that connecting took.
    """

    host: Filled[str]
    address: Filled[str]
    source: Filled[str]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """What was proven, in answer to Probe; what is missing was not.

    token: of the survey that this answers.
    """

    proofs: tuple[Proof, ...]
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Written:
    """All has been told that a worker has written before it said what has become of the task with this number."""

    worker: Worker
    number: int


AgentMessage = Output | Remark | Alert | Reserved | Taken | Hello | Addresses | ProbeResults | Written
