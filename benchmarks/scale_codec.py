"""The same rendezvous without sockets: every message is encoded and decoded, so that thousands of hosts take seconds.

Each number of hosts is measured in its own process, so that the memory is that of this number alone.
"""

import asyncio
import gc
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

import rendezvous.server.serving  # noqa: F401 - imported before gRPC, whose log it turns off

# isort: split
import psutil

from protos import rendezvous_pb2 as pb
from rendezvous.core.messages import Effect, HostsChanged, Interrupt, Joined, Launch, Lost, Terminate, Ticked
from rendezvous.core.model import Host, Policy, Slot, Worker
from rendezvous.core.reports import JoinReason, Report
from rendezvous.server.authority import Authority
from rendezvous.server.server import Server
from rendezvous.wire import codec
from rendezvous.wire.notifications import Notification, Published


@dataclass(slots=True)
class Figures:
    """The costs of one number of hosts.

    seconds: for each phase of the job.
    sent, received: the bytes that the server sent and received in each phase.
    memory_bytes: the growth of the server's memory, with one follower of each topic.
    """

    hosts: int
    seconds: dict[str, float] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    memory_bytes: int = 0


class _Story:
    """One job from its hosts' names to its second generation, which has one host less."""

    def __init__(self, hosts: int, slots: int) -> None:
        self.figures = Figures(hosts)
        self._names = [f"host-{number}" for number in range(hosts)]
        self._slots = slots
        self._bytes = {"sent": 0, "received": 0}
        policy = Policy.elastic(slots * (hosts - 1), None, slots * hosts)
        self._server = Server(policy, self._carry_out, Authority("scale").issue_server())
        self._followers: dict[str, AsyncGenerator[Notification, None]] = {}

    async def run(self) -> Figures:
        memory = _read_memory()
        self._server.submit(Ticked(0.0))
        names = self._names
        self._time("hosts are named, workers ordered", self._name_hosts)
        self._time("agents report", lambda: self._report(names))
        self._time("workers join, a generation is published", lambda: self._join(names, 0, Report()))
        await self._time_telling("hosts are told of it", Published)
        self.figures.memory_bytes = _read_memory() - memory
        lost, survivors = names[-1], names[:-1]
        self._time("agents report again", lambda: self._report(names))
        self._time("a tick of the clock", lambda: self._server.submit(Ticked(1.0)))
        await self._followers.pop(lost).aclose()
        self._time("one host is lost", lambda: self._server.submit(Lost(lost, "it was cut off")))
        await self._time_telling("hosts are told of the loss", Interrupt)
        report = Report(reason=JoinReason.CONTINUE)
        self._time("survivors join, the next is published", lambda: self._join(survivors, 1, report))
        await self._time_telling("hosts are told of the next", Published)
        for follower in self._followers.values():
            await follower.aclose()
        return self.figures

    def _name_hosts(self) -> None:
        self._server.submit(HostsChanged(tuple(Host(name, self._slots) for name in self._names)))
        self._followers = {name: self._server.topic(name).subscribe() for name in self._names}

    def _workers(self, host: str) -> list[Worker]:
        return [Worker(Slot(host, index), 1) for index in range(self._slots)]

    def _report(self, hosts: Iterable[str]) -> None:
        number = len(self.figures.seconds) + 1
        for host in hosts:
            running = [codec.encode_worker(worker) for worker in self._workers(host)]
            data = self._send(pb.AgentReport(host=host, number=number, running=running).SerializeToString())
            self._server.receive(pb.AgentReport.FromString(data))

    def _join(self, hosts: Iterable[str], after: int, report: Report) -> None:
        """Join all workers of a host in one call, as its agent does."""
        told = () if report == Report() else (report,)
        for host in hosts:
            joined = [codec.encode(Joined(worker, after, *told)) for worker in self._workers(host)]
            received = pb.JoinRequest.FromString(self._send(pb.JoinRequest(joined=joined).SerializeToString()))
            for each in received.joined:
                self._server.submit(codec.decode(Joined, each))

    async def _time_telling(self, part: str, kind: type[Notification]) -> None:
        began = time.perf_counter()
        for follower in self._followers.values():
            while True:
                data = codec.encode_notification(await anext(follower)).SerializeToString()
                self._bytes["sent"] += len(data)
                if isinstance(codec.decode_notification(pb.Notification.FromString(data)), kind):
                    break
        self._note(part, began)

    def _time(self, part: str, work: Callable[[], None]) -> None:
        began = time.perf_counter()
        work()
        self._note(part, began)

    def _note(self, part: str, began: float) -> None:
        self.figures.seconds[part] = time.perf_counter() - began
        self.figures.sent[part], self.figures.received[part] = self._bytes["sent"], self._bytes["received"]
        self._bytes = {"sent": 0, "received": 0}

    def _send(self, data: bytes) -> bytes:
        self._bytes["received"] += len(data)
        return data

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Launch | Terminate):
            self._bytes["sent"] += len(codec.encode_order(effect))


def _read_memory() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


def measure(hosts: int, slots: int) -> Figures:
    """Tell the story of so many hosts."""
    return asyncio.run(_Story(hosts, slots).run())
