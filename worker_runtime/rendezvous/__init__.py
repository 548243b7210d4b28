"""The only import of the rendezvous package by a training process; see `isolation` for why there is only one.

In comes what the agent's variables tell this worker (`Bootstrap` and others). Out come clients of the rendezvous, and
its plain values.

Threads: gRPC's own, while a client is open.
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
    from rendezvous.bootstrap import BACKEND, CHECKPOINT, Backend, Bootstrap, name_stop_file, read_backend
    from rendezvous.core.messages import Depart, Interrupt, OfferResize
    from rendezvous.core.model import Assignment, Endpoint, Membership, Slot, limit_silence, rank
    from rendezvous.core.reports import CompletedOperation, Decision, JoinReason, PendingOperation, Report, Verdict
    from rendezvous.errors import RendezvousError, SequencerStartError
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

__all__ = [
    "BACKEND",
    "CHECKPOINT",
    "DESCRIPTORS",
    "LENGTH",
    "SEQUENCER",
    "Activation",
    "Assignment",
    "Backend",
    "Bootstrap",
    "CompletedOperation",
    "Decision",
    "Depart",
    "Endpoint",
    "ForkRequest",
    "Forked",
    "Interrupt",
    "JoinReason",
    "Membership",
    "Message",
    "OfferResize",
    "PendingOperation",
    "Ready",
    "RendezvousError",
    "Report",
    "SequencerStartError",
    "Slot",
    "Verdict",
    "connect",
    "decode",
    "encode",
    "encode_answer",
    "find_unsendable",
    "import_client",
    "import_task_client",
    "limit_silence",
    "name_stop_file",
    "rank",
    "read_backend",
    "read_checkpoint",
    "read_is_elastic",
    "read_numbers",
    "read_port",
]


_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_ELASTIC = "HOROVOD_ELASTIC"  # "1" in a job whose policy allows losses
_NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")  # in the order of Assignment


def read_is_elastic(environment: Mapping[str, str]) -> bool:
    """Whether the job outlives the loss of workers."""
    return environment.get(_ELASTIC) == "1"


def read_checkpoint(environment: Mapping[str, str]) -> Path | None:
    """The folder that the job's checkpoints are in; None where it has none."""
    folder = environment.get(CHECKPOINT)
    return Path(folder) if folder else None


def read_numbers(environment: Mapping[str, str]) -> Assignment:
    """The numbers with which the agent has started this worker."""
    return Assignment(*(int(environment[f"HOROVOD_{name}"]) for name in _NUMBERS))


def import_client() -> "type[WorkerClient]":
    """The class of the rendezvous' client; it brings gRPC, which costs 76 ms that a world of one need not pay."""
    with own_packages(), _without_fork_handlers():
        from rendezvous.client import WorkerClient  # noqa: PLC0415 - see above
    return WorkerClient


def import_task_client() -> "type[TaskClient]":
    """The class of the client for tasks; see `import_client`."""
    with own_packages(), _without_fork_handlers():
        from rendezvous.client.tasks import TaskClient  # noqa: PLC0415 - see above
    return TaskClient


def find_unsendable(place: str, value: object, is_sendable: Callable[[object], bool]) -> str:
    """See `rendezvous.wire.tasks`, which few workers need."""
    with own_packages():
        from rendezvous.wire.tasks import find_unsendable as find  # noqa: PLC0415 - see above
    return find(place, value, is_sendable)


def connect(bootstrap: Bootstrap) -> "WorkerClient":
    """A client of the rendezvous for this worker."""
    with _without_fork_handlers():
        return import_client()(bootstrap)


@contextmanager
def _without_fork_handlers() -> Iterator[None]:
    """Within it, gRPC starts without its handlers for fork(), unless the user has asked for them.

    They wait, in the process that forks, for threads of gRPC to pause, and now and then wait for ever: a script that
    forks between `shutdown()` and `init()` hung within twenty rounds. In an elastic job, where a call of ours is always
    open, they give up at once, and write a line for each process that a `DataLoader` starts. Nobody needs them here: a
    forked child is no worker, and uses no connection of its parent's. gRPC reads the variable once, while it is
    imported, or when it starts.
    """
    if _FORK_SUPPORT in os.environ:
        yield
        return
    os.environ[_FORK_SUPPORT] = "0"
    try:
        yield
    finally:
        del os.environ[_FORK_SUPPORT]
