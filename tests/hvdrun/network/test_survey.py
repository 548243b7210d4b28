"""A survey of real listeners on this machine, each of them a host of its own name; and one machine's part in it."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import pytest

from hvdrun.network.choice import choose
from hvdrun.network.errors import NoAllowedAddressError, SurveyTimeoutError
from hvdrun.network.findings import LAUNCHER, Findings
from hvdrun.network.participant import Participant
from hvdrun.network.survey import survey
from rendezvous.wire.orders import Found, Look, Order, Probe, Probed, Remark, Telling

LIMIT_SECONDS = 20.0
ENOUGH_SECONDS = 5.0  # for an agent on this machine


class Agents:
    """What the agents of some hosts do when they are surveyed; `ignore` says what they do not even hear."""

    def __init__(self, hosts: Sequence[str], ignore: Callable[[str, Order], bool] = lambda *_: False) -> None:
        self._tellings: dict[str, asyncio.Queue[Telling]] = {host: asyncio.Queue() for host in hosts}
        self._participants: dict[str, Participant] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._ignore = ignore
        self.tokens: set[bytes] = set()

    def send(self, host: str, order: Order) -> None:
        """An order comes to a host."""
        if not self._ignore(host, order):
            task = asyncio.create_task(self._obey(host, order))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    def tell(self, host: str, telling: Telling) -> None:
        """A host tells something."""
        self._tellings[host].put_nowait(telling)

    async def receive(self, host: str) -> Telling:
        """What a host tells next."""
        return await self._tellings[host].get()

    def close(self) -> None:
        """All agents go."""
        for participant in self._participants.values():
            participant.close()

    async def _obey(self, host: str, order: Order) -> None:
        match order:
            case Look(token, name):
                self.tokens.add(token)
                self._participants[host] = Participant(token, name, loopback=True)
                self.tell(host, Remark("what nobody waits for"))
                self.tell(host, await self._participants[host].look())
            case Probe(targets):
                self.tell(host, await self._participants[host].probe(targets))
            case _:
                raise AssertionError(order)


def run_survey(
    hosts: Sequence[str],
    ignore: Callable[[str, Order], bool] = lambda *_: False,
    limit_seconds: float = LIMIT_SECONDS,
    settled: Mapping[str, str] | None = None,
) -> Findings:
    async def run() -> Findings:
        with ExitStack() as stack:
            agents = Agents(hosts, ignore)
            stack.callback(agents.close)
            async with asyncio.timeout(LIMIT_SECONDS):
                findings = await survey(
                    hosts, agents.send, agents.receive, settled=settled, limit_seconds=limit_seconds, loopback=True
                )
            assert [len(token) for token in agents.tokens] == [32]
            return findings

    return asyncio.run(run())


def test_every_host_proves_all_that_it_was_asked_for() -> None:
    findings = run_survey(("b", "a", "c"))
    assert findings.hosts == ("b", "a", "c")
    assert {found.cores for found in findings.found.values()} == {len(os.sched_getaffinity(0))}
    for host in findings.hosts:
        proven = {(proof.host, proof.address) for proof in findings.proofs[host]}
        assert proven == {
            (other, entry.endpoint.address)
            for other in (*findings.hosts, LAUNCHER)
            if other != host
            for entry in findings.addresses(other)
        }
    choice = choose(findings)
    assert [*choice.hosts] == ["b", "a", "c"]
    assert None not in choice.launcher.values()


def test_a_newcomer_and_the_hosts_in_use_prove_each_other_at_the_known_address() -> None:
    findings = run_survey(("a", "b", "new"), settled={"a": "127.0.0.1", "b": "127.0.0.1"})
    for host in ("a", "b"):
        assert [entry.endpoint.address for entry in findings.addresses(host)] == ["127.0.0.1"]
        assert {proof.host for proof in findings.proofs[host]} == {"new"}
    assert {proof.host for proof in findings.proofs["new"]} == {"a", "b", LAUNCHER}
    choice = choose(findings)
    assert {choice.hosts[host].address for host in ("a", "b")} == {"127.0.0.1"}
    assert choice.launcher["new"] is not None


def test_late_answers_to_an_earlier_survey_do_not_count() -> None:
    async def run() -> Findings:
        agents = Agents(("a", "b"))
        for telling in (Found((), 1, b"earlier"), Probed((), b"earlier")):
            agents.tell("a", telling)
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                return await survey(("a", "b"), agents.send, agents.receive, loopback=True)
        finally:
            agents.close()

    findings = asyncio.run(run())
    assert {proof.host for proof in findings.proofs["a"]} == {"b", LAUNCHER}
    assert {proof.host for proof in findings.proofs["b"]} == {"a", LAUNCHER}


def test_a_host_in_use_that_lost_its_address_cannot_be_joined() -> None:
    findings = run_survey(("a", "new"), settled={"a": "192.0.2.1"})
    with pytest.raises(NoAllowedAddressError) as caught:
        choose(findings)
    assert caught.value.hosts == ("a",)


def test_no_host_is_no_survey() -> None:
    agents = Agents(())
    assert asyncio.run(survey((), agents.send, agents.receive)).proofs == {}


@pytest.mark.parametrize(("kind", "task"), [(Look, "tell its addresses"), (Probe, "tell whom it reaches")])
def test_hosts_that_do_not_answer_in_time_are_named(kind: type[Order], task: str) -> None:
    with pytest.raises(SurveyTimeoutError, match=f"b, d did not {task}") as caught:
        run_survey(("a", "b", "c", "d"), lambda host, order: host in "bd" and isinstance(order, kind), ENOUGH_SECONDS)
    assert caught.value.hosts == ("b", "d")


def test_an_agent_that_is_lost_ends_the_survey_with_its_own_error() -> None:
    async def run() -> None:
        async def receive(host: str) -> Telling:
            if host == "b":
                raise ConnectionError("b is gone")
            return await asyncio.Future[Telling]()

        async with asyncio.timeout(LIMIT_SECONDS):
            await survey(("a", "b"), lambda *_: None, receive)

    with pytest.raises(ConnectionError, match="b is gone"):
        asyncio.run(run())


def test_nobody_listens_on_loopback_in_earnest() -> None:
    async def look() -> Found:
        participant = Participant(b"token", "a")
        try:
            return await participant.look()
        finally:
            participant.close()

    found = asyncio.run(look())
    assert not {"127.0.0.1", "::1"} & {listening.endpoint.address for listening in found.addresses}
