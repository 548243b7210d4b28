"""The server of agents that call over mutual TLS: the time of a generation, and of notifications of a lost host."""

import asyncio
import tempfile
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from scale_agents import Crowd, Mission, Question, Told

from rendezvous.core.messages import Begun, HostsChanged, Lost
from rendezvous.core.model import Host, Policy
from rendezvous.journal.sqlite import open_journal
from rendezvous.server.authority import Authority
from rendezvous.server.file_limit import raise_file_limit
from rendezvous.server.server import Server
from rendezvous.server.state_machine import Term

LOOPBACK = "127.0.0.1"
_IDLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Figures:
    """The costs of a number of agents; seconds end when the last agent was notified.

    join_seconds: from the first connection to the generation.
    loss_seconds: from the loss of a host to its notification.
    next_seconds: from the survivors' first join to the next generation, over existing connections.
    server_cpu_seconds, agents_cpu_seconds: processor times during `join_seconds`.
    idle_share: the server's share of a processor afterwards, while agents only report.
    retries: the calls that agents repeated during `join_seconds`.
    memory_bytes: the growth of the server process, connections included.
    """

    hosts: int
    workers: int
    join_seconds: float
    loss_seconds: float
    next_seconds: float
    server_cpu_seconds: float
    agents_cpu_seconds: float
    idle_share: float
    retries: int
    memory_bytes: int


def measure(hosts: int, slots: int, lease_seconds: float, processes: int, disk: Path | None = None) -> Figures:
    """Let agents in several processes join, and lose one of them; each decision is on a disk first, if one is given."""
    raise_file_limit()
    policy = Policy.elastic(slots * (hosts - 1), None, slots * hosts, lease_seconds=lease_seconds)
    return asyncio.run(_measure([f"host-{number}" for number in range(hosts)], slots, policy, processes, disk))


async def _measure(names: list[str], slots: int, policy: Policy, processes: int, disk: Path | None) -> Figures:
    authority = Authority("scale")
    async with AsyncExitStack() as stack:
        term = Term()
        if disk is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=disk)))
            journal = open_journal(folder, warn=print)
            stack.push_async_callback(journal.close)
            term = Term(journal=journal)
        server = await stack.enter_async_context(Server(policy, lambda _: None, authority.issue_server(), term=term))
        address = f"{LOOPBACK}:{await server.open(LOOPBACK)}"
        missions = [
            Mission(
                address,
                slots,
                policy.lease_seconds,
                names[-1],
                {name: authority.issue_agent(name) for name in names[number::processes]},
            )
            for number in range(processes)
        ]
        with Crowd(missions) as crowd:
            await asyncio.to_thread(crowd.await_readiness)
            server.submit(HostsChanged(tuple(Host(name, slots) for name in names)))
            for name in names:
                server.submit(Begun(name))
            process = psutil.Process()
            memory, cpu = process.memory_info().rss, time.process_time()
            join_seconds, told = await _ask(crowd, Question.JOIN)
            cpu = time.process_time() - cpu
            memory = process.memory_info().rss - memory
            idle = await _measure_idle_share()
            retries = sum(each.retries for each in told)
            loss_seconds, _ = await _ask(crowd, Question.LISTEN, _lose(server, names[-1]))
            next_seconds, _ = await _ask(crowd, Question.JOIN_AGAIN)
    agents_cpu = sum(each.cpu_seconds for each in told)
    workers = slots * len(names)
    return Figures(
        len(names), workers, join_seconds, loss_seconds, next_seconds, cpu, agents_cpu, idle, retries, memory
    )


async def _measure_idle_share() -> float:
    """The server's share of a processor while agents only report."""
    before = time.process_time()
    await asyncio.sleep(_IDLE_SECONDS)
    return (time.process_time() - before) / _IDLE_SECONDS


async def _lose(server: Server, host: str) -> float:
    """Lose a host once all others listen; return the time."""
    await asyncio.sleep(1.0)  # each process has read the question by then; it listens all the time anyway
    now = time.monotonic()
    server.submit(Lost(host, "it was cut off"))
    return now


async def _ask(
    crowd: Crowd, question: Question, cause: Coroutine[Any, Any, float] | None = None
) -> tuple[float, list[Told]]:
    """Ask all agents; return the seconds from then, or from the event's cause, and their answers."""
    began = time.monotonic()
    crowd.ask(question)
    hearing = asyncio.create_task(asyncio.to_thread(crowd.hear))
    if cause is not None:
        began = await cause
    told = await hearing
    return max(each.last for each in told) - began, told
