"""A Watch over real workers, for the tests of what it does; to be used in a process of its own (alone.py)."""

import asyncio
import errno
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hvdrun.agent import processes
from hvdrun.agent.guard import Guard
from hvdrun.agent.input import InputFeed
from hvdrun.agent.output import OutputForwarder
from hvdrun.agent.spawn import ExecSpawner, Spawned, Spawner, WorkerEnvironment
from hvdrun.agent.watch import Watch
from rendezvous.core.effects import Launch
from rendezvous.core.events import Exited
from rendezvous.core.model import Assignment, Endpoint, Slot, Worker
from rendezvous.credentials import Credential
from rendezvous.orders import Begin
from tests.hvdrun.agent.jobs import JOB, ORIGIN

LIMIT_SECONDS = 20.0


def make_launches(count: int) -> tuple[Launch, ...]:
    """The orders to start so many workers on one host."""
    workers = (Worker(Slot("a", index), 1) for index in range(count))
    return tuple(
        Launch(worker, Assignment(rank, count, rank, count, 0, 1), "placed") for rank, worker in enumerate(workers)
    )


LAUNCHES = make_launches(2)
WORKERS = tuple(launch.worker for launch in LAUNCHES)


@dataclass
class Room:
    """A Watch, and a folder where its workers leave what they have to say."""

    watch: Watch
    guard: Guard
    folder: Path

    def find(self, name: str) -> int | None:
        """The pid that a worker or a child wrote into a file of this name."""
        path = self.folder / name
        return int(path.read_text()) if path.exists() and path.read_text() else None

    async def started(self, name: str) -> int:
        """Its pid, once it lives."""
        await until(lambda: self.find(name) is not None)
        pid = self.find(name)
        assert pid is not None
        return pid

    async def ended(self, count: int = 1) -> tuple[Exited, ...]:
        """The ends, once there are so many."""
        await until(lambda: len(self.watch.ended()) == count)
        return self.watch.ended()


class SlowSpawner:
    """Starts a worker when it is told to go on."""

    def __init__(self, inner: Spawner) -> None:
        self.inner = inner
        self.may_go_on = asyncio.Event()
        self.begun = 0

    async def prepare(self) -> None:
        """See `Spawner`."""

    async def spawn(self, launch: Launch) -> Spawned:
        """See `Spawner`."""
        self.begun += 1
        spawned = await self.inner.spawn(launch)
        await self.may_go_on.wait()
        return spawned

    async def close(self) -> None:
        """See `Spawner`."""


class UnpreparedSpawner(SlowSpawner):
    """Needs time before it can start any worker."""

    async def prepare(self) -> None:
        """See `Spawner`."""
        await self.may_go_on.wait()


class FailingSpawner(SlowSpawner):
    """Finds no more descriptors."""

    async def spawn(self, launch: Launch) -> Spawned:  # noqa: ARG002 - the protocol's signature
        """See `Spawner`."""
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - other processes fulfil it
            await asyncio.sleep(0.002)


@asynccontextmanager
async def watching(
    *command: str, wrap: Callable[[Spawner], Spawner] = lambda spawner: spawner, outlives_losses: bool = False
) -> AsyncIterator[Room]:
    """A Watch over workers with this command, which is closed in the end and has then left nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = Begin(
            job=JOB,
            host="a",
            server="127.0.0.1:1",
            credential=Credential(b"", b"", b""),
            command=command,
            directory=name,
            environment={b"PATH": os.environb[b"PATH"]},
            lease_seconds=30,
            start_timeout_seconds=30,
            address="127.0.0.1",
        )
        guard = Guard(ORIGIN, folder / "nothing")
        environment = WorkerEnvironment(begin, folder / "agent.sock", Endpoint("127.0.0.1", 1))
        spawner = wrap(ExecSpawner(begin, environment))
        feed = InputFeed(lambda: None)
        watch = Watch(JOB, "a", spawner, OutputForwarder(), feed=feed, guard=guard, outlives_losses=outlives_losses)
        watch.open()
        try:
            yield Room(watch, guard, folder)
        finally:
            await watch.close()
            left = [process for process in processes.running() if processes.comes_from(process, ORIGIN)]
            guard.dismiss()
        assert left == []
