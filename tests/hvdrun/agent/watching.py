"""A Watch over real workers, for the tests of what it does; to be used in a process of its own (alone.py)."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdrun.agent.accounts import Accounts
from hvdrun.agent.spawn import ExecSpawner, Spawned, WorkerEnvironment
from hvdrun.agent.streams import InputFeed, OutputForwarder
from hvdrun.agent.watch import Watch
from hvdrun.processes import processes
from hvdrun.processes.child import Children
from hvdrun.processes.watchdog import Watchdog
from rendezvous.core.messages import Exited, Launch
from rendezvous.wire.accounts import Account, AccountsReported
from rendezvous.wire.orders import Begin
from tests.hvdrun.agent.jobs import JOB, ORIGIN, make_begin, make_launches
from tests.waiting import happen

LAUNCHES = make_launches(2)
WORKERS = tuple(launch.worker for launch in LAUNCHES)


class GatedSpawner(ExecSpawner):
    """Executes workers; a test may hold it up, or let it fail.

    may_prepare: without it, no worker can be started.
    may_report: without it, a worker runs that is not reported.
    error: what starting a worker raises.
    """

    def __init__(self, begin: Begin, environment: WorkerEnvironment) -> None:
        super().__init__(begin, environment)
        self.may_prepare, self.may_report = asyncio.Event(), asyncio.Event()
        self.may_prepare.set()
        self.may_report.set()
        self.error: Exception | None = None
        self.begun = 0

    async def prepare(self) -> None:
        """See `Spawner`."""
        await self.may_prepare.wait()

    async def spawn(self, launch: Launch) -> Spawned:
        """See `Spawner`."""
        self.begun += 1
        if self.error is not None:
            raise self.error
        spawned = await super().spawn(launch)
        await self.may_report.wait()
        return spawned


@dataclass
class Room:
    """A Watch, and a folder where its workers leave what they have to say.

    told: the accounts that the launcher has been told, each with the number of ends that were to be reported then.
    """

    watch: Watch
    spawner: GatedSpawner
    watchdog: Watchdog
    folder: Path
    told: list[tuple[Account, int]]

    def find(self, name: str) -> int | None:
        """The pid that a worker or a child wrote into a file of this name."""
        path = self.folder / name
        return int(path.read_text()) if path.exists() and path.read_text() else None

    async def started(self, name: str) -> int:
        """The pid of the worker of this name, once it lives."""
        await happen(lambda: self.find(name) is not None, f"the start of {name}")
        pid = self.find(name)
        assert pid is not None
        return pid

    async def ended(self, count: int = 1) -> tuple[Exited, ...]:
        """The ends, once there are so many."""
        await happen(lambda: len(self.watch.ended()) == count, f"{count} ends")
        return self.watch.ended()


@asynccontextmanager
async def watching(*command: str, **options: Any) -> AsyncIterator[Room]:
    """A Watch over workers with this command, which is closed in the end and has then left nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = make_begin(folder, *command)
        children = Children()
        watchdog = Watchdog(ORIGIN, [folder / "nothing"], children=children)
        watchdog.start()
        spawner = GatedSpawner(begin, WorkerEnvironment(begin, folder / "agent.sock"))
        feed, output = InputFeed(lambda: None), OutputForwarder()
        told: list[tuple[Account, int]] = []

        def hear(message: AccountsReported) -> None:
            told.extend((account, len(watch.ended())) for account in message.accounts)

        options["accounts"] = Accounts(folder / "agent.sock", hear)
        watch = Watch(JOB, "a", spawner, output, feed=feed, children=children, watchdog=watchdog, **options)
        watch.open()
        try:
            yield Room(watch, spawner, watchdog, folder, told)
        finally:
            await watch.close()
            left = find_ours()
            watchdog.end()
        assert left == []


def find_ours() -> list[processes.Process]:
    """All that comes from the agent."""
    return [process for process in processes.running() if processes.comes_from(process, ORIGIN)]
