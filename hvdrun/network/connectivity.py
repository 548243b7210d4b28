"""Checks which addresses of a job's hosts the other hosts reach.

Each host listens on all its addresses, and then probes the others. The launcher takes part too, under a separate name,
because the agents must reach the rendezvous.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from hvdrun.network.addresses import list_addresses
from hvdrun.network.errors import ConnectivityTimeoutError
from hvdrun.network.probe import Listener, bound_seconds, probe
from rendezvous.wire.orders import (
    Addresses,
    AgentMessage,
    ListAddresses,
    Listening,
    Order,
    ProbePeers,
    ProbeResults,
    ProbeTarget,
    Proof,
)

LAUNCHER = "(launcher)"  # the name of hvdrun in a check: no host can have it
ALL_PAIRS_LIMIT = 32
ANSWER_SECONDS = 15.0  # an agent answers immediately, if its machine is not busy
_TOKEN_BYTES = 32
_LIST, _REPORT = "list its addresses", "report what it reaches"

Answer = TypeVar("Answer", Addresses, ProbeResults)


@dataclass(frozen=True, slots=True)
class Connectivity:
    """The results of one connectivity check.

    found: the addresses of each participant, LAUNCHER included.
    pairs: (a, b): a was asked to reach b, at all addresses of b.
    proofs: the proofs that each participant has.
    """

    found: Mapping[str, Addresses]
    pairs: frozenset[tuple[str, str]]
    proofs: Mapping[str, Sequence[Proof]]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The participants except the launcher."""
        return tuple(name for name in self.found if name != LAUNCHER)

    def addresses(self, host: str) -> tuple[Listening, ...]:
        """The addresses of a participant, in its order; none if it did not take part."""
        if host in self.found:
            return self.found[host].addresses
        return ()

    def without(self, host: str) -> Self:
        """The same results without this host."""
        return replace(
            self,
            found={name: entry for name, entry in self.found.items() if name != host},
            pairs=frozenset(pair for pair in self.pairs if host not in pair),
            proofs={name: proofs for name, proofs in self.proofs.items() if name != host},
        )

    def probers(self, host: str) -> frozenset[str]:
        """The participants that were asked to reach this host."""
        return frozenset(prober for prober, target in self.pairs if target == host)


def plan_pairs(hosts: Sequence[str], newcomers: frozenset[str] | None = None) -> frozenset[tuple[str, str]]:
    """The pairs to probe: each host with the launcher, and the hosts with each other.

    newcomers: the hosts that are not in use yet; then only pairs with one of them are probed.

    Beyond `ALL_PAIRS_LIMIT` hosts, all pairs would be too many. Then each host probes its neighbours in both directions
    at the distances 1, 2, 4, 8, ... in the given order, and the first host, which has the workers' store. If the hosts
    are divided into two parts that do not reach each other, some neighbours are in different parts. Hosts that are
    listed together (a rack, a subnet) also probe hosts far away in the list.
    """
    pairs = {(host, LAUNCHER) for host in hosts}
    for index, host in enumerate(hosts):
        others = hosts
        if len(hosts) > ALL_PAIRS_LIMIT:
            others = (hosts[0], *_list_neighbours(hosts, index))
        pairs.update((host, other) for other in others if other != host)
    return frozenset(pair for pair in pairs if newcomers is None or not newcomers.isdisjoint(pair))


def _list_neighbours(hosts: Sequence[str], index: int) -> list[str]:
    distances = [1 << power for power in range(len(hosts).bit_length()) if 1 << power <= len(hosts) // 2]
    return [hosts[(index + sign * distance) % len(hosts)] for distance in distances for sign in (1, -1)]


class Participant:
    """The part of one machine in a check.

    Args:
        token: the secret of this check.
        host: the name of the machine in the check.
    """

    def __init__(self, token: bytes, host: str) -> None:
        self._token = token
        self._listener = Listener(token, host)

    async def list_addresses(self) -> Addresses:
        """Listen on all addresses, and return them; called once."""
        listening = await self._listener.open(list_addresses())
        return Addresses(listening, self._token)

    async def probe(self, targets: Sequence[ProbeTarget]) -> ProbeResults:
        """Return a proof for each target that this machine reaches."""
        return ProbeResults(await probe(self._token, targets), self._token)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


async def check_connectivity(
    hosts: Sequence[str],
    send: Callable[[str, Order], None],
    receive: Callable[[str], Awaitable[AgentMessage]],
    *,
    settled: Mapping[str, str] | None = None,
    limit_seconds: float = ANSWER_SECONDS,
) -> Connectivity:
    """Find out which addresses of these hosts and of this machine the others reach.

    Args:
        hosts: by their names in the job, in the order of the job; each has an agent.
        send: sends an order to a host's agent.
        receive: the next message of a host's agent; answers to an earlier check are skipped.
        settled: by host that is in use already, the address that the others use. Only pairs with a new host are
            probed; a host in no such pair is not asked.
        limit_seconds: the time limit for an answer, in addition to the time for the probes.

    Raises:
        ConnectivityTimeoutError: some hosts did not answer in time; the error names all of them.
    """
    settled = settled or {}
    pairs = plan_pairs(hosts, frozenset(hosts) - settled.keys())
    concerned = {host for pair in pairs for host in pair}
    hosts = [host for host in hosts if host in concerned]

    token = secrets.token_bytes(_TOKEN_BYTES)
    launcher = Participant(token, LAUNCHER)
    try:
        for host in hosts:
            send(host, ListAddresses(token, host))
        own = await launcher.list_addresses()
        answers = await _gather(hosts, receive, Addresses, token, limit_seconds=limit_seconds, task=_LIST)
        found = {host: _keep(answer, settled.get(host)) for host, answer in answers.items()} | {LAUNCHER: own}

        targets = {host: _list_targets(host, found, pairs) for host in hosts}
        for host in hosts:
            send(host, ProbePeers(targets[host]))
        patience = limit_seconds + bound_seconds(max(map(len, targets.values()), default=0))
        probed = await _gather(hosts, receive, ProbeResults, token, limit_seconds=patience, task=_REPORT)
        return Connectivity(found, pairs, {host: answer.proofs for host, answer in probed.items()})
    finally:
        launcher.close()


def _keep(found: Addresses, address: str | None) -> Addresses:
    """Keep only this address, if the host is in use already."""
    if address is None:
        return found
    return replace(found, addresses=tuple(entry for entry in found.addresses if entry.endpoint.address == address))


def _list_targets(
    prober: str, found: Mapping[str, Addresses], pairs: frozenset[tuple[str, str]]
) -> tuple[ProbeTarget, ...]:
    return tuple(
        ProbeTarget(host, listening.endpoint)
        for host, entry in found.items()
        if (prober, host) in pairs
        for listening in entry.addresses
    )


async def _gather(
    hosts: Sequence[str],
    receive: Callable[[str], Awaitable[AgentMessage]],
    kind: type[Answer],
    token: bytes,
    *,
    limit_seconds: float,
    task: str,
) -> dict[str, Answer]:
    """The answers of all hosts to the check with this token."""

    async def await_answer(host: str) -> Answer:
        while True:
            message = await receive(host)
            if isinstance(message, kind) and message.token == token:
                return message

    waits = {host: asyncio.create_task(await_answer(host), name="wait for an answer to a check") for host in hosts}
    try:
        if waits:
            await asyncio.wait(waits.values(), timeout=limit_seconds, return_when=asyncio.FIRST_EXCEPTION)
        for wait in waits.values():
            if wait.done():
                wait.result()
        if silent := [host for host, wait in waits.items() if not wait.done()]:
            raise ConnectivityTimeoutError(silent, task, limit_seconds)
        return {host: wait.result() for host, wait in waits.items()}
    finally:
        for wait in waits.values():
            wait.cancel()
        await asyncio.gather(*waits.values(), return_exceptions=True)  # none may replace the one that is being raised
