"""The only import of the rendezvous package in a training process; `isolation` has the reason.

It reads the agent's variables (`Bootstrap` and others), and has clients and plain values of the rendezvous.

Threads: gRPC's, while a client is open.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from worker_runtime.rendezvous.isolation import own_packages

if TYPE_CHECKING:
    from rendezvous.client import WorkerClient as WorkerClient
    from rendezvous.client.tasks import TaskClient

with own_packages():
    from rendezvous.bootstrap import (
        BACKEND,
        CHECK_NAN,
        CHECK_REPLICAS,
        CHECKPOINT,
        INCARNATION,
        JOB,
        RUNNING_SIGNAL_OFFSET,
        SNAPSHOT_FD,
        SNAPSHOT_MEMORY,
        STACK_DESCRIPTOR,
        STACK_MEMORY,
        STACK_SIGNAL_OFFSET,
        TIMELINE,
        TIMELINE_MARK_CYCLES,
        VERSION,
        Backend,
        Bootstrap,
        count_restarts,
        forget_world,
        name_stop_file,
        read_backend,
        read_may_restart,
    )
    from rendezvous.core.messages import Depart, Interrupt, OfferResize
    from rendezvous.core.model import (
        DEFAULT_LEASE_SECONDS,
        Assignment,
        Endpoint,
        Membership,
        Slot,
        limit_silence,
        rank,
    )
    from rendezvous.core.outcome import Blame, describe_end
    from rendezvous.core.reports import (
        Action,
        CompletedOperation,
        JoinReason,
        PendingOperation,
        RecoveryDecision,
        Report,
    )
    from rendezvous.errors import JoinRefusedError, RendezvousError, SequencerStartError
    from rendezvous.server.threads import count_startable
    from rendezvous.wire.account_file import (
        BEGAN,
        LAYOUT,
        LAYOUT_NUMBER,
        MOST_RANKS,
        MOST_RECOVERIES,
        PRESENT,
        RECOVERIES,
        RECOVERY_TIMES,
        RECOVERY_VALUES,
        REPEATED_STEPS,
        SINCE,
        STEPS,
        WAITED_SECONDS,
        WAITED_STEPS,
        Part,
    )
    from rendezvous.wire.account_file import BYTES as ACCOUNT_BYTES
    from rendezvous.wire.processes import (
        DESCRIPTORS,
        LENGTH,
        SEQUENCER,
        Activation,
        Forked,
        ForkRequest,
        Message,
        Ready,
        decode,
        encode,
        encode_answer,
        read_port,
    )
    from rendezvous.wire.tensors import reduce_tensor

__all__ = [
    "ACCOUNT_BYTES",
    "BACKEND",
    "BEGAN",
    "CHECKPOINT",
    "CHECK_NAN",
    "CHECK_REPLICAS",
    "DEFAULT_LEASE_SECONDS",
    "DESCRIPTORS",
    "INCARNATION",
    "JOB",
    "LAYOUT",
    "LAYOUT_NUMBER",
    "LENGTH",
    "MOST_RANKS",
    "MOST_RECOVERIES",
    "PRESENT",
    "RECOVERIES",
    "RECOVERY_TIMES",
    "RECOVERY_VALUES",
    "REPEATED_STEPS",
    "RUNNING_SIGNAL_OFFSET",
    "SEQUENCER",
    "SINCE",
    "SNAPSHOT_FD",
    "SNAPSHOT_MEMORY",
    "STACK_DESCRIPTOR",
    "STACK_MEMORY",
    "STACK_SIGNAL_OFFSET",
    "STEPS",
    "TIMELINE",
    "TIMELINE_MARK_CYCLES",
    "VERSION",
    "WAITED_SECONDS",
    "WAITED_STEPS",
    "Action",
    "Activation",
    "Assignment",
    "Backend",
    "Blame",
    "Bootstrap",
    "CompletedOperation",
    "Depart",
    "Endpoint",
    "ForkRequest",
    "Forked",
    "Interrupt",
    "JoinReason",
    "JoinRefusedError",
    "Membership",
    "Message",
    "OfferResize",
    "Part",
    "PendingOperation",
    "Ready",
    "RecoveryDecision",
    "RendezvousError",
    "Report",
    "SequencerStartError",
    "Slot",
    "connect",
    "count_restarts",
    "count_startable",
    "decode",
    "describe_end",
    "encode",
    "encode_answer",
    "find_unsendable",
    "forget_world",
    "import_client",
    "import_task_client",
    "limit_silence",
    "name_stop_file",
    "rank",
    "read_backend",
    "read_checkpoint",
    "read_is_elastic",
    "read_may_restart",
    "read_numbers",
    "read_port",
    "reduce_tensor",
]


_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_ELASTIC = "HOROVOD_ELASTIC"  # "1" in a job whose policy allows losses
_NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")  # in the order of Assignment


def read_is_elastic(environment: Mapping[str, str]) -> bool:
    """Whether the job is elastic."""
    return environment.get(_ELASTIC) == "1"


def read_checkpoint(environment: Mapping[str, str]) -> Path | None:
    """The folder of the job's checkpoints (`--checkpoint`); None for none."""
    folder = environment.get(CHECKPOINT)
    if folder:
        return Path(folder)
    return None


def read_numbers(environment: Mapping[str, str]) -> Assignment:
    """The ranks and sizes with which the agent has started this worker."""
    return Assignment(*(int(environment[f"HOROVOD_{name}"]) for name in _NUMBERS))


def import_client() -> "type[WorkerClient]":
    """The class of the rendezvous client. It imports gRPC, which takes 76 ms that a world of one need not spend."""
    with own_packages(), _without_fork_handlers():
        from rendezvous.client import WorkerClient  # noqa: PLC0415 - a world of one needs no gRPC
    return WorkerClient


def import_task_client() -> "type[TaskClient]":
    """The class of the tasks client; see `import_client`."""
    with own_packages(), _without_fork_handlers():
        from rendezvous.client.tasks import TaskClient  # noqa: PLC0415 - few workers need it
    return TaskClient


def find_unsendable(place: str, value: object, is_sendable: Callable[[object], bool]) -> str:
    """See `rendezvous.wire.tasks`, which is imported late because few workers need it."""
    with own_packages():
        from rendezvous.wire.tasks import find_unsendable as find  # noqa: PLC0415 - few workers need it
    return find(place, value, is_sendable)


def connect(bootstrap: Bootstrap) -> "WorkerClient":
    """Create a client of the rendezvous for this worker."""
    with _without_fork_handlers():
        return import_client()(bootstrap)


@contextmanager
def _without_fork_handlers() -> Iterator[None]:
    """A context in which gRPC starts without its handlers for fork(), unless the user has enabled them.

    In the forking process they wait for gRPC's threads to pause, and occasionally wait forever: a script that forks
    between `shutdown()` and `init()` hung within twenty rounds. In an elastic job, which always has an open call, they
    give up immediately, and print a line for each process that a `DataLoader` starts. They are not needed: a forked
    child is not a worker, and uses no connection of its parent. gRPC reads the variable once, at its import or start.
    """
    if _FORK_SUPPORT in os.environ:
        yield
        return
    os.environ[_FORK_SUPPORT] = "0"
    try:
        yield
    finally:
        del os.environ[_FORK_SUPPORT]
