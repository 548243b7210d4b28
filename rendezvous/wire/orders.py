"""The messages between launcher and agent: the handshake of an agent that joins, orders to it, messages from it.

An agent reads orders from its standard input and writes messages to its standard output; an agent that joins uses its
connection. In a job that outlives its launcher both travel by calls of the rendezvous once it is reached. The orders
`Launch` and `Terminate` are effects of the core.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from rendezvous.core.messages import Launch, Terminate
from rendezvous.core.model import Endpoint, Worker
from rendezvous.wire import Filled
from rendezvous.wire.accounts import AccountsReported
from rendezvous.wire.hangs import AskStacks, GiveUp, Stacks, WaitsReported

SERVER_NAME = "rendezvous.hvdrun"
TERM = "hvdrun-term"  # in the metadata of each answer of the server: which start of the server this is


@dataclass(frozen=True, slots=True)
class Credential:
    """A party's certificate and key, and the authority that it trusts; PEM."""

    authority: bytes
    certificate: bytes
    private_key: bytes = field(repr=False)


def agent_identity(host: str, number: int = 1) -> str:
    """The name of a host's agent in its certificate: a URI; hex-coded, since a host's name may have any character.

    number: which agent of this host, counted from 1: one that was cut off and replaced may reconnect.
    """
    name = f"hvdrun:agent:{host.encode().hex()}"
    if number != 1:
        return f"{name}:{number}"
    return name


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """An agent asks to join.

    version: of hvdrun on its host.
    secret: of the token.
    host: the name of its host in the job.
    slots: of its host; 0 for a connection of this host's agent to the rendezvous, through the same listener.
    tunnel: the port on that host's loopback address at which such connections start.
    """

    version: str
    secret: bytes = field(repr=False)
    host: str
    slots: int
    tunnel: int = 0


class Admission(IntEnum):
    """The answer to an agent that asks to join."""

    ACCEPTED = 1
    REFUSED = 2
    NOT_NEEDED = 3


@dataclass(frozen=True, slots=True)
class AgentAdmitted:
    """The answer, with its reason.

    reason: a sentence; empty for an agent that is accepted.
    exit_code: of an agent that is not needed.
    """

    admission: Admission
    reason: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How the workers of a host are started.

    bind_to: the CPUs to which each is bound; a value of `hvdrun.processes.binding.BindTo`.
    stdin_rank: the rank whose worker reads hvdrun's standard input; None for none.
    prefork: they may be forked from a process that has imported torch.
    """

    bind_to: Filled[str]
    stdin_rank: int | None
    prefork: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """The agent's configuration; sent once. Only Wait, Examine, ListAddresses and ProbePeers come before it.

    job: the job's identity, random and not secret.
    host: this host's name in the job.
    server: address:port of the rendezvous server.
    command, directory, environment: of every worker; the environment in bytes, as an operating system has it.
    lease_seconds: how long this agent may be silent before it counts as lost.
    launcher_timeout_seconds: how long the server may be silent before this agent kills its workers; infinite on the
        launcher's machine.
    address: where the workers of other hosts reach this host.
    workers: how they are started.
    inherits: the environment is added to the agent's own, which comes from a login on this host.
    interface: the name, on this host, of the network interface with `address`; empty if it has none.
    grace_seconds: how long a worker that has failed may take to exit.
    outlives_losses: the job may continue after the loss of a worker, in place or with all started again.
    looks_for_world: report when rank 0 listens at the port of its round: the job depends on what its workers are.
    server_timeout_seconds: the job outlives its launcher, and may be without it for so long; None: it ends with it.
    """

    job: Filled[str]
    host: Filled[str]
    server: Filled[str]
    credential: Credential = field(repr=False)
    command: Filled[tuple[str, ...]]
    directory: str
    environment: Mapping[bytes, bytes] = field(repr=False)
    lease_seconds: float
    launcher_timeout_seconds: float
    start_timeout_seconds: float
    address: str
    workers: WorkerOptions
    interface: str = ""
    inherits: bool = False
    grace_seconds: float = 5.0
    outlives_losses: bool = False
    looks_for_world: bool = False
    server_timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the next order, no longer than this; None: without a limit."""

    limit_seconds: float | None


@dataclass(frozen=True, slots=True)
class Examine:
    """Examine this host, and report what was found.

    directory: of the workers.
    cleans: end what earlier jobs have left.
    is_short: find out only what takes no time.
    """

    directory: str
    cleans: bool = False
    is_short: bool = False


@dataclass(frozen=True, slots=True)
class ListAddresses:
    """Find this machine's addresses, open a listener on each, and report both.

    token: secret of this connectivity check, the same for all its hosts.
    host: this host's name in the job.
    """

    token: Filled[bytes] = field(repr=False)
    host: Filled[str]


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A listener that another host has reported."""

    host: Filled[str]
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class ProbePeers:
    """Connect to each of these listeners, and report which of them have proved their identity."""

    targets: tuple[ProbeTarget, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The job is over: send the remaining output, and exit.

    exit_code: of an agent that has joined: that of the job, or one that asks to start the agent again.
    """

    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop notice has come for the job: tell its workers, all at the same step."""


@dataclass(frozen=True, slots=True)
class PassOn:
    """Send this signal, which is the program's own, to the main process of each worker."""

    signal: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The launcher's user suspends or resumes it: while it is suspended, its silence is no loss."""

    held: bool


@dataclass(frozen=True, slots=True)
class Input:
    """The next piece of hvdrun's standard input, for the worker that reads it; an empty piece is the end."""

    data: bytes


Order = (
    Begin
    | Launch
    | Terminate
    | Release
    | Stop
    | PassOn
    | Hold
    | Input
    | Wait
    | Examine
    | AskStacks
    | GiveUp
    | ListAddresses
    | ProbePeers
)


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
    """A sentence of the agent that `hvdrun -v` prints."""

    text: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A sentence of the agent that hvdrun always prints; without a full stop."""

    text: str


@dataclass(frozen=True, slots=True)
class AgentFailed:
    """The agent cannot serve: the error in one sentence.

    traceback: of a bug; "" where the host lacks a resource.
    """

    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The agent of rank 0's host has reserved a port for the torch store that a worker of this round may open."""

    master: Endpoint
    round: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The worker that reads hvdrun's standard input is ready for the next piece."""


@dataclass(frozen=True, slots=True)
class Hello:
    """An agent's first message, sent before it reads an order.

    version: of hvdrun on its host.
    """

    version: str


@dataclass(frozen=True, slots=True)
class Listening:
    """A listener on one address of a host, and the address's interface.

    prefix: the length of the subnet's prefix, in bits.
    speed: in Mbit/s; 0 if it is not known.
    """

    interface: str
    endpoint: Endpoint
    prefix: int
    speed: int = 0


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a host, in answer to ListAddresses.

    token: of the connectivity check that this answers.
    """

    addresses: tuple[Listening, ...]
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Proof:
    """The sender has reached this address of this host.

    source: the sender's address.
    milliseconds: the time to connect.
    """

    host: Filled[str]
    address: Filled[str]
    source: Filled[str]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """The listeners that were reached, in answer to ProbePeers.

    token: of the connectivity check that this answers.
    """

    proofs: tuple[Proof, ...]
    token: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Written:
    """The agent has sent all output that a worker wrote before it delivered the outcome of this task."""

    worker: Worker
    number: int


@dataclass(frozen=True, slots=True)
class Examined:
    """The facts about a host as JSON, in answer to Examine."""

    facts: Filled[str]


@dataclass(frozen=True, slots=True)
class Started:
    """A worker of a round runs."""

    worker: Worker


AgentMessage = (
    Output
    | Remark
    | Alert
    | AgentFailed
    | Reserved
    | Taken
    | Hello
    | Examined
    | Stacks
    | WaitsReported
    | AccountsReported
    | Addresses
    | ProbeResults
    | Written
    | Started
)
