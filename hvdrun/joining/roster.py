"""The agents that have joined by themselves, those in use by the job among them; one for each host name.

A name is taken while the connection of its agent is open. A host that is gone looks like one that is slow. So a second
agent with the name waits until the connection of a dead one would have ended: by TCP keepalive before the job has begun
on that host, and by the lease afterwards. When it ends, the job gives up the old agent and its certificate, and the new
one takes the name. When it stays open for longer, the old agent is alive, and the new one is refused.

In a job that outlives its launcher an agent that serves the job stays in the roster without a connection, until the job
has lost its host, or has left it.

An agent that the job gives up before it has begun on that host joins again. If the job ends meanwhile, the roster waits
for this agent, so that it gets the exit code.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from hvdrun.errors import LaunchError
from hvdrun.joining.channel import WAITING_SECONDS, Channel, forward_inside
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.hosts import MAX_SLOTS_PER_HOST, count_slots, is_host_name
from hvdrun.transport.transport import StreamTransport
from rendezvous.core.model import Host, limit_silence
from rendezvous.core.outcome import TEMPORARY_FAILURE
from rendezvous.wire import codec
from rendezvous.wire.orders import Admission, AgentAdmitted, AgentJoin, Begin, Order, Release

_RELEASE_SECONDS = 5.0  # for released agents to close their connections, and for agents that join again to come
_MARGIN_SECONDS = 5.0
# If the job loses the other agent, the job ends, and the next try needs the agent that gets this answer.
_COUNTED_ON = "the job counts on another agent with the name {!r}: start this one again when the job has ended."


@dataclass(slots=True)
class _JoinedAgent:
    """One agent; used once the job has taken it. For `tunnel` see `AgentJoin`.

    channel: None for an agent that a former launcher has taken.
    ended: done when the roster no longer has it.
    outlives: it stays in the roster without a connection.
    """

    host: Host
    channel: Channel | None
    tunnel: int
    ended: asyncio.Future[None]
    is_used: bool = False
    outlives: bool = False
    tunnel_target: int | None = None  # the port of this machine's loopback address, for forwarded connections


class Roster:
    """The agents of one job; belongs to one event loop.

    Args:
        lease_seconds: the lease of the job, in seconds.
        tasks: forward the agents' connections to the rendezvous.
        proof_seconds: how soon TCP keepalive detects the end of an agent that the job does not use.
        margin_seconds: between that time, or the lease, and the end of the connection.
        is_lasting: the job outlives its launcher.

    restored: the hosts whose agents a former launcher has taken.
    """

    def __init__(
        self,
        lease_seconds: float,
        tasks: BackgroundTasks,
        *,
        proof_seconds: float = WAITING_SECONDS,
        margin_seconds: float = _MARGIN_SECONDS,
        is_lasting: bool = False,
    ) -> None:
        self._lease_seconds = lease_seconds
        self._tasks = tasks
        self._margin_seconds = margin_seconds
        self._proof_seconds = proof_seconds
        self._is_lasting = is_lasting
        self.restored: tuple[Host, ...] = ()
        self._agents: dict[str, _JoinedAgent] = {}
        self._given_up: set[str] = set()  # the hosts whose agents join again
        self._refusal = ""  # why no more agents are needed
        self._exit_code: int | None = None  # the job's; None while it runs
        self._has_ended = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts that have an agent, in the order in which they joined."""
        return tuple(agent.host for agent in self._agents.values())

    def restore(self, hosts: tuple[Host, ...], tunnels: Mapping[str, int], target: int) -> None:
        """Add the agents that a former launcher has taken.

        Args:
            hosts: their hosts.
            tunnels: by host, the port of its loopback address that leads to the rendezvous, where it needs one.
            target: the port of the rendezvous at this machine's loopback address.
        """
        self.restored = hosts
        for host in hosts:
            ended = asyncio.get_running_loop().create_future()
            agent = _JoinedAgent(host, None, tunnels.get(host.name, 0), ended, is_used=True, outlives=True)
            if agent.tunnel:
                agent.tunnel_target = target
            self._agents[host.name] = agent
        self._note_change()

    def note_begun(self, host: str) -> None:
        """Note that the agent of this host serves the job from now on."""
        if host in self._agents:
            self._agents[host].outlives = self._is_lasting

    def drop(self, host: str) -> None:
        """Drop the agent of a host that the job has lost or left; one with a connection stays until that has ended."""
        if host in self._agents and self._agents[host].outlives:
            self._remove(host)

    async def await_change(self, known: tuple[Host, ...]) -> tuple[Host, ...]:
        """Wait until the hosts of the roster differ from the given ones; returns the new hosts."""
        while (hosts := self.hosts) == known:
            await self._changed.wait()
        return hosts

    async def receive(self, join: AgentJoin, channel: Channel) -> AgentAdmitted:
        """Answer an agent that has authenticated; where its name is taken, the answer takes time (see the module)."""
        if not join.slots:
            return self._forward(join.host, channel)
        if not is_host_name(join.host) or not 1 <= join.slots <= MAX_SLOTS_PER_HOST:
            return AgentAdmitted(
                Admission.REFUSED,
                f"{join.host!r} with {count_slots(join.slots)} is no host: give it a name of letters, digits, dots and "
                f"dashes (--name), and 1 to {MAX_SLOTS_PER_HOST} slots (--slots).",
            )

        while not self._refusal and (former := self._agents.get(join.host)) is not None:
            limit_seconds = self._limit(former)
            ends = {former.ended, channel.closed}
            await asyncio.wait(ends, timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED)
            if channel.closed.done():
                return AgentAdmitted(Admission.REFUSED, "it has closed its connection.")
            if not former.ended.done():
                return AgentAdmitted(
                    Admission.REFUSED,
                    f"the host {join.host!r} has an agent, which answers: end that one, or give this one another name "
                    "(--name).",
                )

        if self._refusal and join.host in self._given_up:
            channel.closed.add_done_callback(lambda _: self._note_return(join.host))
            await self._has_ended.wait()
        if self._refusal:
            if self._exit_code is None and join.host in self._agents:
                return AgentAdmitted(Admission.NOT_NEEDED, _COUNTED_ON.format(join.host), TEMPORARY_FAILURE)
            return AgentAdmitted(Admission.NOT_NEEDED, self._refusal, self._exit_code or 0)

        channel.keep_alive(self._proof_seconds)
        self._given_up.discard(join.host)
        ended = asyncio.get_running_loop().create_future()
        self._agents[join.host] = _JoinedAgent(Host(join.host, join.slots), channel, join.tunnel, ended)
        channel.closed.add_done_callback(lambda _: self._forget(join.host, channel))
        self._note_change()
        return AgentAdmitted(Admission.ACCEPTED)

    def take(self, host: str, launcher_timeout_seconds: float) -> Channel:
        """The connection of a host's agent, which the job uses from now on.

        launcher_timeout_seconds: how long the agent serves without hearing from the launcher, once the job has begun.

        Raises:
            LaunchError: it has gone, or is used already.
        """
        agent = self._find(host)
        if agent.channel is None:
            raise _explain_gone(host)
        agent.is_used = True
        agent.channel.keep_alive(max(launcher_timeout_seconds, self._proof_seconds))
        return agent.channel

    def give_up(self, host: str, channel: Channel) -> None:
        """End the connection of an agent before the job has begun on its host; the agent joins again."""
        if channel.is_open:
            self._given_up.add(host)
            channel.abort()

    def open_tunnel(self, host: str, port: int) -> int:
        """The port on the host's loopback address that is forwarded to this machine's `port` from now on.

        Raises:
            LaunchError: its agent has gone.
        """
        agent = self._find(host, also_used=True)
        agent.tunnel_target = port
        return agent.tunnel

    def stop_admitting(self, reason: str, exit_code: int | None = None) -> None:
        """Admit no more agents; `release` ends those that the job does not use.

        Args:
            reason: a sentence for the agents that are not needed.
            exit_code: the job's, once it has ended.
        """
        self._refusal = reason
        self._exit_code = exit_code
        if exit_code is not None:
            self._has_ended.set()

    async def release(self, keep: frozenset[str] = frozenset()) -> None:
        """Release all agents that the job does not use, except those on the hosts in `keep`."""
        with contextlib.suppress(TimeoutError):  # an agent that was given up does not join again
            async with asyncio.timeout(_RELEASE_SECONDS):
                while self._given_up:
                    await self._changed.wait()
        unused = (agent for name, agent in self._agents.items() if not agent.is_used and name not in keep)
        leaving = [agent.channel for agent in unused if agent.channel is not None]
        for channel in leaving:
            channel.transport.write(codec.encode_order(Release(self._exit_code or 0)))
        if leaving:
            await asyncio.wait([channel.closed for channel in leaving], timeout=_RELEASE_SECONDS)
        for channel in leaving:
            channel.abort()

    def _forward(self, host: str, channel: Channel) -> AgentAdmitted:
        """Answer a connection for the rendezvous, and forward it to the rendezvous."""
        agent = self._agents.get(host)
        if agent is None or agent.tunnel_target is None:
            return AgentAdmitted(Admission.REFUSED, "this agent reaches the rendezvous without the launcher.")
        forward_inside(channel, agent.tunnel_target, self._tasks)
        return AgentAdmitted(Admission.ACCEPTED)

    def _limit(self, agent: _JoinedAgent) -> float:
        """How long the connection of a dead agent can stay open."""
        if not agent.is_used:
            return self._proof_seconds + self._margin_seconds
        return max(limit_silence(self._lease_seconds), self._proof_seconds) + self._margin_seconds

    def _find(self, host: str, *, also_used: bool = False) -> _JoinedAgent:
        agent = self._agents.get(host)
        if agent is None or (agent.is_used and not also_used):
            raise _explain_gone(host)
        return agent

    def _forget(self, host: str, channel: Channel) -> None:
        agent = self._agents.get(host)
        if agent is not None and agent.channel is channel and not agent.outlives:
            self._remove(host)

    def _remove(self, host: str) -> None:
        self._agents.pop(host).ended.set_result(None)
        self._note_change()

    def _note_return(self, host: str) -> None:
        """Note that an agent that was given up has its answer."""
        self._given_up.discard(host)
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _explain_gone(host: str) -> LaunchError:
    return LaunchError(f"the agent of the host {host!r} has gone: start it again there.")


_CLOSE_SECONDS = 5.0  # for what was sent to leave


class JoinedTransport(StreamTransport):
    """The transport to an agent that has joined by itself; see `Transport`.

    Args:
        host: the host of the agent.
        roster: the agents that have joined.
        launcher_timeout_seconds: how long the agent waits for a silent launcher.
    """

    def __init__(self, host: str, roster: Roster, launcher_timeout_seconds: float) -> None:
        super().__init__(host)
        self._roster = roster
        self._launcher_timeout_seconds = launcher_timeout_seconds
        self._channel: Channel | None = None
        self._joins_again = True  # when its connection ends

    async def open(self) -> None:
        """Take the agent, which runs; see `Transport`."""
        self._channel = self._roster.take(self.host, self._launcher_timeout_seconds)
        self._reader, self._writer = self._channel.reader, self._channel.transport

    def send(self, order: Order) -> None:
        """Send an order; see `Transport`."""
        super().send(order)
        if isinstance(order, Begin):
            self._roster.note_begun(self.host)
        if isinstance(order, Begin | Release):
            self._joins_again = False

    async def wait(self) -> str:
        """Wait for the end of the connection; see `Transport`."""
        if self._channel is None:
            return "it was never opened"
        await asyncio.wait({self._channel.closed})
        return "the connection of its agent ended; see what the agent printed there"

    async def tunnel(self, port: int) -> int:
        """The agent listens from its start, and the launcher forwards the connections; see `Transport`."""
        return self._roster.open_tunnel(self.host, port)

    async def kill(self) -> None:
        """Close the connection; see `Transport`."""
        if self._channel is None:
            return
        if self._joins_again:
            self._roster.give_up(self.host, self._channel)
        else:
            self._channel.abort()

    async def close(self) -> None:
        """Close the connection, with which an agent ends that serves the job; see `Transport`."""
        if self._joins_again:
            await self.kill()
        elif self._channel is not None:
            self._channel.transport.close()
            await asyncio.wait({self._channel.closed}, timeout=_CLOSE_SECONDS)
            self._channel.abort()
