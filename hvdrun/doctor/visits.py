"""Visits all hosts of a job at the same time: starts an agent on each, asks it, and releases it."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hvdrun.doctor.bandwidth import Measured
from hvdrun.errors import HostLostEarlyError, HvdrunError, LaunchError
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.hosts.findings import Finding, Host, diagnose
from hvdrun.hosts.hello import check_version
from hvdrun.hosts.reach import Transports
from hvdrun.network.addresses import Restriction
from hvdrun.network.choice import check_machines, choose
from hvdrun.network.connectivity import LAUNCHER, Connectivity, check_connectivity
from hvdrun.processes.background import BackgroundTasks
from hvdrun.spec.facts import Facts
from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.transport import Transport
from rendezvous.wire.orders import AgentFailed, AgentMessage, Examine, Examined

EXAMINE_SECONDS = 30.0  # for an agent's answer: it may start a program of the vendor
_SLOW_FACTOR, _SLOW_MILLISECONDS = 5.0, 5.0  # of the median, and at least
_LATENCY_TRIES = 3  # before a pair is called slow: a busy host may be late once

Reach = Callable[[str, JobSpec], Transport]


@dataclass(slots=True)
class Examination:
    """The result of the visits.

    hosts: the hosts that were reached, by name.
    findings: what is wrong, in the order in which it was found.
    milliseconds: by pair of hosts, the time to connect from the one to the other.
    measured: the measurements of each backend, if they were asked for.
    """

    hosts: dict[str, Host] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    milliseconds: dict[tuple[str, str], float] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)


async def visit(spec: JobSpec, *, cleans: bool = False, reach: Reach | None = None) -> Examination:
    """Examine the hosts of a job that `hvdrun.hosts.preparation` has prepared.

    Args:
        spec: the job.
        cleans: end the processes of earlier jobs, and remove their files.
        reach: creates the transport to a host; `Transports.make` unless given.
    """
    found = Examination()
    transports = Transports()
    failures: dict[str, str] = {}
    lost: dict[str, str] = {}
    names = [host.name for host in spec.workers.hosts]
    answers = {name: asyncio.get_running_loop().create_future() for name in names}

    async def show(host: str, message: AgentMessage) -> None:
        match message:
            case AgentFailed(error):
                failures[host] = error
            case Examined(facts) if not answers[host].done():
                answers[host].set_result(facts)
            case _:
                pass

    def lose(host: str, how: str) -> None:
        if not answers[host].done():
            lost[host] = how
            answers[host].set_result("")

    async with BackgroundTasks() as tasks:
        timeout_seconds = spec.limits.effective_launcher_timeout_seconds if spec.remote.hosts else None
        pool = AgentPool(tasks, show, lose, timeout_seconds)
        try:
            for name in names:
                pool.add(name, (reach or transports.make)(name, spec))
            visits = (_examine(pool, name, spec, answers[name], cleans=cleans) for name in names)
            for name, answer in zip(names, await asyncio.gather(*visits), strict=True):
                if isinstance(answer, Host):
                    found.hosts[name] = answer
                else:
                    error = HostLostEarlyError(name, lost[name]) if answer is None else answer
                    sentence = failures.get(name, str(error)).rstrip(".")
                    found.findings.append(Finding(sentence, (name,)))
            found.findings += diagnose(found.hosts)
            if len(found.hosts) > 1:
                await _connect(pool, spec, found)
        finally:
            await pool.release()
            await pool.close()
            transports.close()
    return found


async def _examine(
    pool: AgentPool, name: str, spec: JobSpec, answer: asyncio.Future[str], *, cleans: bool
) -> Host | HvdrunError | None:
    """The facts about one host, or why there are none; None if its agent was lost."""
    limit_seconds = spec.limits.start_timeout_seconds
    try:
        async with asyncio.timeout(limit_seconds):
            await pool.open(name)
            await check_version(pool, name, spec)
        asked = time.time()
        began = time.monotonic()
        pool.send(name, Examine(os.fspath(spec.workers.directory), cleans))
        limit_seconds = EXAMINE_SECONDS
        async with asyncio.timeout(limit_seconds):
            text = await answer
    except TimeoutError:
        return LaunchError(
            f"the agent on the host {name!r} did not answer within {limit_seconds:g} s: look whether the machine is "
            "overloaded, or a disk of it hangs."
        )
    except HvdrunError as error:
        return error

    if not text:
        return None

    took, facts = time.monotonic() - began, Facts.decode(text)
    slots = next(host.slots for host in spec.workers.hosts if host.name == name)
    # The host's clock was read at some time between the question and the answer.
    return Host(facts, slots, not spec.is_remote(name), facts.clock - (asked + took / 2), took / 2)


async def _connect(pool: AgentPool, spec: JobSpec, found: Examination) -> None:
    """Find out which hosts reach each other, and how fast."""
    names = spec.remote.interfaces
    restriction = Restriction(names) if names else None
    slow: list[Finding] = []
    for _ in range(_LATENCY_TRIES):
        try:
            connectivity = await check_connectivity(list(found.hosts), pool.send, pool.hear)
            check_machines(choose(connectivity, restriction))
        except LaunchError as error:
            found.findings.append(Finding(str(error).rstrip("."), tuple(found.hosts)))
            return
        for pair, milliseconds in list_latencies(connectivity).items():
            found.milliseconds[pair] = min(milliseconds, found.milliseconds.get(pair, milliseconds))
        slow = find_slow(found.milliseconds)
        if not slow:
            return
    found.findings += slow


def list_latencies(connectivity: Connectivity) -> dict[tuple[str, str], float]:
    """By pair of hosts, the shortest time to connect from the one to the other."""
    shortest: dict[tuple[str, str], float] = {}
    for prober, proofs in connectivity.proofs.items():
        for proof in proofs:
            pair = prober, proof.host
            if LAUNCHER not in pair:
                shortest[pair] = min(proof.milliseconds, shortest.get(pair, proof.milliseconds))
    return shortest


def find_slow(milliseconds: dict[tuple[str, str], float]) -> list[Finding]:
    """The slowest pair, if it takes several times as long as the median."""
    if len(milliseconds) <= 2:  # the two directions of one pair  # noqa: PLR2004 - one pair has two
        return []
    times = sorted(milliseconds.values())
    median = times[len(times) // 2]
    (one, other), slowest = max(milliseconds.items(), key=lambda item: item[1])
    if slowest < max(_SLOW_MILLISECONDS, _SLOW_FACTOR * median):
        return []
    what = f"{one} takes {slowest:.1f} ms to connect to {other}, and most pairs of hosts {median:.1f} ms"
    return [Finding(what, (one, other), f"ping {other}, from {one}")]
