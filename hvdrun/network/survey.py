"""Asks all hosts for their addresses, and then for whom they reach.

The launcher takes part under a name of its own, since the agents must reach the rendezvous on it.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from hvdrun.network.errors import SurveyTimeoutError
from hvdrun.network.findings import LAUNCHER, Findings, plan_pairs
from hvdrun.network.participant import Participant
from hvdrun.network.probe import bound_seconds
from rendezvous.wire.orders import Found, Look, Order, Probe, Probed, ProbeTarget, Telling

ANSWER_SECONDS = 15.0  # for what an agent does at once, on a busy machine
_TOKEN_BYTES = 32

Answer = TypeVar("Answer", Found, Probed)


async def survey(
    hosts: Sequence[str],
    send: Callable[[str, Order], None],
    receive: Callable[[str], Awaitable[Telling]],
    *,
    settled: Mapping[str, str] | None = None,
    limit_seconds: float = ANSWER_SECONDS,
    loopback: bool = False,
) -> Findings:
    """Survey the network between these hosts and this machine.

    Args:
        hosts: by their names in the job, in the order of the job; each has an agent.
        send: sends an order to a host's agent.
        receive: the next telling of a host's agent; others than answers to this survey are passed over: an earlier one
            may have been given up before all had answered.
        settled: the hosts among these that are in use already, and the one address of each that the others were told.
            Only what concerns a newcomer is asked; whom it does not concern takes no part.
        limit_seconds: how long an answer may take, beyond the time that probing itself needs.
        loopback: loopback addresses take part as well; for tests.

    Raises:
        SurveyTimeoutError: some hosts did not answer in time; all of them are named.
    """
    settled = settled or {}
    pairs = plan_pairs(hosts, frozenset(hosts) - settled.keys())
    concerned = {host for pair in pairs for host in pair}
    hosts = [host for host in hosts if host in concerned]
    token = secrets.token_bytes(_TOKEN_BYTES)
    launcher = Participant(token, LAUNCHER, loopback=loopback)
    try:
        for host in hosts:
            send(host, Look(token, host))
        own = await launcher.look()
        answers = await _gather(hosts, receive, Found, token, limit_seconds=limit_seconds, task="tell its addresses")
        found = {host: _keep(answer, settled.get(host)) for host, answer in answers.items()} | {LAUNCHER: own}
        targets = {host: _list_targets(host, found, pairs) for host in hosts}
        for host in hosts:
            send(host, Probe(targets[host]))
        patience = limit_seconds + bound_seconds(max(map(len, targets.values()), default=0))
        probed = await _gather(hosts, receive, Probed, token, limit_seconds=patience, task="tell whom it reaches")
        return Findings(found, pairs, {host: answer.proofs for host, answer in probed.items()})
    finally:
        launcher.close()


def _keep(found: Found, address: str | None) -> Found:
    """Of a host that is in use only the address that the others know."""
    if address is None:
        return found
    return replace(found, addresses=tuple(entry for entry in found.addresses if entry.endpoint.address == address))


def _list_targets(
    prober: str, found: Mapping[str, Found], pairs: frozenset[tuple[str, str]]
) -> tuple[ProbeTarget, ...]:
    return tuple(
        ProbeTarget(host, listening.endpoint)
        for host, entry in found.items()
        if (prober, host) in pairs
        for listening in entry.addresses
    )


async def _gather(
    hosts: Sequence[str],
    receive: Callable[[str], Awaitable[Telling]],
    kind: type[Answer],
    token: bytes,
    *,
    limit_seconds: float,
    task: str,
) -> dict[str, Answer]:
    """The answers of all hosts to the survey of this token, by host."""

    async def await_answer(host: str) -> Answer:
        while True:
            telling = await receive(host)
            if isinstance(telling, kind) and telling.token == token:
                return telling

    waits = {host: asyncio.create_task(await_answer(host)) for host in hosts}
    try:
        if waits:
            await asyncio.wait(waits.values(), timeout=limit_seconds, return_when=asyncio.FIRST_EXCEPTION)
        for wait in waits.values():
            if wait.done():
                wait.result()
        if silent := [host for host, wait in waits.items() if not wait.done()]:
            raise SurveyTimeoutError(silent, task, limit_seconds)
        return {host: wait.result() for host, wait in waits.items()}
    finally:
        for wait in waits.values():
            wait.cancel()
        await asyncio.gather(*waits.values(), return_exceptions=True)
