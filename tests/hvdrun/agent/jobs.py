"""The job of a test process, which no other has, and its description for an agent.

Agents look for, and end, whatever carries the name of their job, wherever on the host it was started: two tests that
run at the same time under one name end each other's workers.
"""

import os
from pathlib import Path

from rendezvous.core.messages import Launch
from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.wire.orders import Begin, Credential, WorkerOptions

JOB = f"job-{os.getpid()}"
ORIGIN = f"{JOB}/a"  # of what comes from its agent on host a


def make_launches(count: int) -> tuple[Launch, ...]:
    """The orders to start so many workers on host a."""
    return tuple(
        Launch(Worker(Slot("a", rank), 1), Assignment(rank, count, rank, count, 0, 1), "placed")
        for rank in range(count)
    )


(LAUNCH,) = make_launches(1)
WORKER = LAUNCH.worker


def make_begin(directory: Path | str, *command: str, **variables: str) -> Begin:
    """A job's description for the agent on host a, with this command, or `true`, and these variables beside PATH."""
    environment = {"PATH": os.environ["PATH"], **variables}
    return Begin(
        job=JOB,
        host="a",
        server="127.0.0.1:1",
        credential=Credential(b"", b"", b""),
        command=command or ("true",),
        directory=str(directory),
        environment={os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
        lease_seconds=30,
        launcher_timeout_seconds=30,
        start_timeout_seconds=30,
        address="127.0.0.1",
        workers=WorkerOptions(bind_to="none", stdin_rank=None, prefork=True),
    )
