"""The environment variables of a worker, which its agent writes and `init()` reads.

`HVD_*` say how to reach the agent. `HOROVOD_*` are for scripts that read them before `init()`, or instead of it; in a
static job they are right from the start, since the placement fixes the ranks. `RANK` and the like are for scripts and
libraries that torchrun would start.
"""

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from rendezvous.core.model import UNBOUNDED, Assignment, Endpoint, Round, Slot, Worker
from rendezvous.errors import BootstrapError, UnknownBackendError

JOB = "HVD_JOB"
VERSION = "HVD_VERSION"  # of hvdrun in the agent
SOCKET = "HVD_SOCKET"
SLOT = "HVD_SLOT"
INCARNATION = "HVD_INCARNATION"
ADDRESS = "HVD_ADDRESS"
START_TIMEOUT = "HVD_START_TIMEOUT"
LEASE = "HVD_LEASE"
SERVER_TIMEOUT = "HVD_SERVER_TIMEOUT"  # seconds; not set in a job that ends with its launcher
LATE = "HVD_LATE"  # "1" or not set
HOROVOD_SHIM = "HVD_HOROVOD_SHIM"  # what `import horovod` means; set by the launcher for all workers
CHECKPOINT = "HVD_CHECKPOINT"  # the folder of the job's checkpoints; set by the launcher, or by the user of another
TIMELINE = "HOROVOD_TIMELINE"  # the file, or DYNAMIC: the program calls start_timeline()
TIMELINE_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
# By the signals SIGRTMIN + 12 and + 13 an agent asks a worker where its main thread is: one for a thread that stands in
# a call, which C answers, and one for a thread that runs, which Python answers. The answer is written into memory of
# this name, with this descriptor or a higher one. `hvdrun/shim/modules/sitecustomize.py` has all of them, too.
STACK_SIGNAL_OFFSET = 12
RUNNING_SIGNAL_OFFSET = 13
STACK_DESCRIPTOR = 100
STACK_MEMORY = "hvdrun-stack"
WATCH_AFTER = "HOROVOD_STALL_CHECK_TIME_SECONDS"  # seconds; set by the launcher, or by the user; also in a script
HANG_TIMEOUT = "HVD_HANG_TIMEOUT"  # seconds; set by the launcher
CHECK_NAN = "HVD_CHECK_NAN"  # "1", or "error"
CHECK_REPLICAS = "HVD_CHECK_REPLICAS"  # in how many steps the replicas are compared once
SNAPSHOT_FD = "HVD_SNAPSHOT_FD"  # the descriptor of memory in which a worker keeps its snapshots; see SNAPSHOT_MEMORY
SNAPSHOT_MEMORY = "hvdrun-snapshot"  # the name of that memory, in a job that may start its workers again
SNAPSHOT_DIR = "HVD_SNAPSHOT_DIR"  # a folder in memory for files that outlive the workers; see SnapshotFolder
BACKEND = "HVD_BACKEND"  # what moves tensors; set by the launcher, or by the user of another launcher


def name_stop_file(socket: Path) -> Path:
    """The file that an agent creates beside its socket when a stop notice has come for the job."""
    return socket.with_name("stopping")


def name_error_file(socket: Path, worker: Worker) -> Path:
    """The file beside an agent's socket in which a worker may write why its program failed (`@record`)."""
    return socket.with_name(f"error.{worker.slot.index}.{worker.incarnation}.json")


def name_account_file(socket: Path, worker: Worker) -> Path:
    """The file beside an agent's socket in which a worker counts what its time is spent on."""
    return socket.with_name(f"account.{worker.slot.index}.{worker.incarnation}")


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What a worker needs to join its job.

    job: the job's identity, which also marks its processes.
    socket: the agent's Unix socket.
    worker: this worker.
    address: the address at which the members on other hosts reach this host.
    start_timeout_seconds: how long the job waits for all workers to join.
    lease_seconds: how long an agent may be silent before its host is lost.
    is_late: others train already; this worker is added when it is ready.
    server_timeout_seconds: how long a job that outlives its launcher may be without it; 0 for any other job.
    """

    job: str
    socket: Path
    worker: Worker
    address: str
    start_timeout_seconds: float
    lease_seconds: float
    is_late: bool = False
    server_timeout_seconds: float = 0.0

    @property
    def account_file(self) -> Path:
        """See `name_account_file`."""
        return name_account_file(self.socket, self.worker)

    def environment(self) -> dict[str, str]:
        """The variables that carry this value."""
        return {
            **({LATE: "1"} if self.is_late else {}),
            **({SERVER_TIMEOUT: repr(self.server_timeout_seconds)} if self.server_timeout_seconds else {}),
            JOB: self.job,
            SOCKET: str(self.socket),
            SLOT: str(self.worker.slot),
            INCARNATION: str(self.worker.incarnation),
            ADDRESS: self.address,
            START_TIMEOUT: repr(self.start_timeout_seconds),
            LEASE: repr(self.lease_seconds),
        }

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self | None:
        """Read the agent's variables; None if no agent of hvdrun started this process.

        Raises:
            BootstrapError: one of the variables is missing or malformed.
        """
        if JOB not in environment:
            return None

        try:
            bootstrap = cls(
                job=environment[JOB],
                socket=Path(environment[SOCKET]),
                worker=Worker(Slot.parse(environment[SLOT]), int(environment[INCARNATION])),
                address=environment[ADDRESS],
                start_timeout_seconds=float(environment[START_TIMEOUT]),
                lease_seconds=float(environment[LEASE]),
                is_late=environment.get(LATE) == "1",
                server_timeout_seconds=float(environment.get(SERVER_TIMEOUT, 0.0)),
            )
            bootstrap._check()
        except (KeyError, ValueError) as error:
            raise BootstrapError(error) from error
        return bootstrap

    def _check(self) -> None:
        if self.worker.incarnation < 1:
            raise ValueError(f"incarnation {self.worker.incarnation}")
        for limit, seconds in (("start timeout", self.start_timeout_seconds), ("lease", self.lease_seconds)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"a {limit} of {seconds} s")
        if not 0 <= self.server_timeout_seconds < math.inf:
            raise ValueError(f"a server timeout of {self.server_timeout_seconds} s")


class Backend(StrEnum):
    """The backends that the user can choose; without a choice each kind of tensor uses what suits it."""

    GLOO = "gloo"
    NCCL = "nccl"
    UCC = "ucc"


def read_backend(environment: Mapping[str, str]) -> Backend | None:
    """The backend that a worker's variables name; None if they name none.

    Raises:
        UnknownBackendError: the name is unknown.
    """
    name = environment.get(BACKEND)
    if not name:
        return None
    try:
        return Backend(name)
    except ValueError:
        raise UnknownBackendError(BACKEND, name, [backend.value for backend in Backend]) from None


HOROVOD_VARIABLES = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    "HOROVOD_HOSTNAME",
    "HOROVOD_ELASTIC",
)


def horovod_environment(assignment: Assignment, hostname: str, *, elastic: bool) -> dict[str, str]:
    """The variables that scripts written for Horovod read."""
    numbers = (
        assignment.rank,
        assignment.size,
        assignment.local_rank,
        assignment.local_size,
        assignment.cross_rank,
        assignment.cross_size,
    )
    values = (*map(str, numbers), hostname, "1" if elastic else "0")
    return dict(zip(HOROVOD_VARIABLES, values, strict=True))


TORCH_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)  # those that `torch_environment` sets, and that another generation makes wrong
MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def forget_world(environment: MutableMapping[str, str]) -> None:
    """Drop what holds only for the first world of a worker that stays while others come and go."""
    for name in TORCH_VARIABLES:
        environment.pop(name, None)


def read_may_restart(environment: Mapping[str, str]) -> bool:
    """Whether all workers of the job may be started again."""
    return environment.get(MAX_RESTARTS, "0") != "0"


def count_restarts(environment: Mapping[str, str]) -> int:
    """How many times all workers were started again; 0 for a worker that was started alone."""
    if "RANK" not in environment:
        return 0
    text = environment.get(RESTART_COUNT, "")
    return int(text) if text.isdecimal() else 0


def torch_environment(assignment: Assignment, round_: Round, master: Endpoint, job: str) -> dict[str, str]:
    """The variables that torchrun sets for each of its workers; rank 0 of this round will listen at `master`.

    torchrun also sets TORCH_NCCL_ASYNC_ERROR_HANDLING to torch's default; our own groups have another default.
    """
    return {
        "RANK": str(assignment.rank),
        "WORLD_SIZE": str(assignment.size),
        "LOCAL_RANK": str(assignment.local_rank),
        "LOCAL_WORLD_SIZE": str(assignment.local_size),
        "GROUP_RANK": str(round_.group_rank),
        "GROUP_WORLD_SIZE": str(round_.group_size),
        "ROLE_RANK": str(assignment.rank),
        "ROLE_WORLD_SIZE": str(assignment.size),
        "MASTER_ADDR": master.address,
        "MASTER_PORT": str(master.port),
        **torch_worker_environment(round_.number, job),
    }


def torch_worker_environment(restarts: int, job: str) -> dict[str, str]:
    """The variables that also hold for a worker without a world: one that is started alone, in place of another.

    restarts: how often it was started again. TORCHELASTIC_USE_AGENT_STORE is False because no agent opens a store.
    """
    return {
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": job.rpartition("/")[2].partition("~")[0],  # programs make it part of the names of files
        RESTART_COUNT: str(restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def torch_job_environment(limit: int | None) -> dict[str, str]:
    """The variable that torchrun sets for all workers of a job: how many restarts it allows; None: any number."""
    return {MAX_RESTARTS: str(UNBOUNDED if limit is None else limit)}
