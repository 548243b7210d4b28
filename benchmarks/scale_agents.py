"""Agents of simulated hosts: each is a real client of the rendezvous, with its own certificate and connection.

Hundreds of them are in each of the processes beside the server's. They do what an agent does for its workers: report,
follow their host's topic, and report that each worker joins. A connection belongs to one client, since gRPC shares none
between different credentials.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Self

import rendezvous.server.serving  # noqa: F401 - imported before gRPC, whose log it turns off

# isort: split
import grpc

from rendezvous.client import AgentClient
from rendezvous.client.calls import RETRY_SECONDS, may_be_retried
from rendezvous.core.messages import Interrupt, Joined
from rendezvous.core.model import REPORTS_PER_LEASE, Slot, Worker
from rendezvous.core.reports import JoinReason, Report
from rendezvous.errors import UnreachableError
from rendezvous.server.file_limit import raise_file_limit
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Published
from rendezvous.wire.orders import Credential

LIMIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Mission:
    """The agents of one process.

    lost: the host that loses its connection later.
    """

    server: str
    slots: int
    lease_seconds: float
    lost: str
    credentials: dict[str, Credential]


class Question(StrEnum):
    """What agents shall do; when a host is lost, all agents but that host's."""

    JOIN = "connect, report and join, until a generation is published"
    LISTEN = "wait until the generation is interrupted"
    JOIN_AGAIN = "join the next generation, until it is published"


@dataclass(frozen=True, slots=True)
class Told:
    """When the last agent of a process was notified, on the machine's monotonic clock.

    cpu_seconds: the processor time of the process since the question.
    retries: the number of calls that its agents had to repeat so far. They give up as soon as real agents do.
    """

    last: float
    cpu_seconds: float
    retries: int


class Crowd:
    """Agents in separate processes; a context manager that ends them."""

    def __init__(self, missions: Sequence[Mission]) -> None:
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for mission in missions:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(mission, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def await_readiness(self) -> None:
        """Return when every process has connected its clients."""
        for pipe in self._pipes:
            _receive(pipe)

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(LIMIT_SECONDS)
            process.kill()

    def ask(self, question: Question) -> None:
        """Have all agents do this."""
        for pipe in self._pipes:
            pipe.send(question)

    def hear(self) -> list[Told]:
        """The answer of each process, after all of its agents were notified."""
        return [_receive(pipe) for pipe in self._pipes]


def _receive(pipe: Connection) -> Told:
    if not pipe.poll(LIMIT_SECONDS):
        raise TimeoutError(f"agents have not answered within {LIMIT_SECONDS:g} s")
    try:
        answer: Told = pipe.recv()
    except EOFError:
        raise RuntimeError("agents have ended: the machine may be too busy for their leases") from None
    return answer


class _Agent:
    """One host's."""

    def __init__(self, mission: Mission, host: str) -> None:
        self._client = AgentClient(mission.server, host, mission.credentials[host], mission.lease_seconds)
        self._workers = [Worker(Slot(host, index), 1) for index in range(mission.slots)]
        self._pause_seconds = mission.lease_seconds / REPORTS_PER_LEASE
        self._news: asyncio.Queue[Notification] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self.retries = 0

    def open(self) -> None:
        self._tasks = {asyncio.create_task(self._watch()), asyncio.create_task(self._report())}

    async def join(self) -> float:
        await asyncio.gather(*(self._join_one(Joined(worker)) for worker in self._workers))
        return await self.hear(Published)

    async def join_again(self) -> float:
        report = Report(reason=JoinReason.CONTINUE)
        await asyncio.gather(*(self._join_one(Joined(worker, 1, report)) for worker in self._workers))
        return await self.hear(Published)

    async def hear(self, kind: type[Notification]) -> float:
        while not isinstance(await self._news.get(), kind):
            pass
        return time.monotonic()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _join_one(self, joined: Joined) -> None:
        """Join as a worker does, which retries."""
        message = codec.encode(joined)
        while True:
            try:
                await self._client.join(message)
            except grpc.aio.AioRpcError as error:
                if not may_be_retried(error):
                    raise
                self.retries += 1
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _watch(self) -> None:
        async for notice in self._client.watch():
            self._news.put_nowait(notice)

    async def _report(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                await self._client.report(number, self._workers, (), self._pause_seconds)
            except UnreachableError:
                self.retries += 1
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await asyncio.sleep(self._pause_seconds)


def _serve(mission: Mission, pipe: Connection) -> None:
    raise_file_limit()
    asyncio.run(_answer(mission, pipe))


async def _answer(mission: Mission, pipe: Connection) -> None:
    """Answer questions until the pipe is closed."""
    agents = {host: _Agent(mission, host) for host in mission.credentials}
    pipe.send(Told(time.monotonic(), 0.0, 0))
    with suppress(EOFError):
        while True:
            question = await asyncio.to_thread(pipe.recv)
            began = time.process_time()
            staying = [agent for host, agent in agents.items() if host != mission.lost]
            match question:
                case Question.JOIN:
                    for agent in agents.values():
                        agent.open()
                    times = await asyncio.gather(*(agent.join() for agent in agents.values()))
                case Question.LISTEN:
                    times = await asyncio.gather(*(agent.hear(Interrupt) for agent in staying))
                case _:
                    times = await asyncio.gather(*(agent.join_again() for agent in staying))
            retries = sum(agent.retries for agent in agents.values())
            pipe.send(Told(max(times), time.process_time() - began, retries))
    await asyncio.gather(*(agent.close() for agent in agents.values()))
