"""The server in process: real calls of agents over mutual TLS become events, and what follows reaches the topics."""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc
import pytest

from protos import rendezvous_pb2 as pb
from rendezvous.client import AgentClient
from rendezvous.core.lifecycle import WorkerState
from rendezvous.core.messages import (
    Announce,
    Declared,
    Dismiss,
    Effect,
    Exited,
    Finish,
    HostsChanged,
    Joined,
    Launch,
    Lost,
    Notify,
    Terminate,
)
from rendezvous.core.model import Assignment, Endpoint, Host, Policy, Recovery, Slot, Worker
from rendezvous.core.outcome import Cause
from rendezvous.errors import CallRefusedError, ListenError, UnreachableError, WireError
from rendezvous.server.authority import Authority
from rendezvous.server.server import Server
from rendezvous.wire import codec
from rendezvous.wire.notifications import KEY_BYTES, Notification, Published, Topics
from tests.rendezvous.counting import count_steps
from tests.rendezvous.stage import A0, A1, B0, B1, LOOPBACK, Stage, in_clean_loop, open_network, open_stage
from tests.waiting import LIMIT_SECONDS, happen

SEQUENCER = Endpoint("10.0.0.1", 4711)
# Ranks go host by host; cross ranks count the hosts that have the same local rank.
KEY = b"k" * KEY_BYTES
ON_B = Published(1, ((B0, Assignment(2, 4, 0, 2, 1, 2)), (B1, Assignment(3, 4, 1, 2, 1, 2))), KEY)


@pytest.fixture(autouse=True)
def _known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Topics, "_make_key", lambda *_: KEY)


async def join(agent: AgentClient, *workers: Worker, after: int = 0) -> None:
    for worker in workers:
        await agent.join(codec.encode(Joined(worker, after)))


async def form(stage: Stage) -> None:
    """All join."""
    async with stage.agent("a") as a, stage.agent("b") as b:
        await join(b, B1, B0)
        await join(a, A1, A0)


async def read(agent: AgentClient, count: int) -> list[Notification]:
    """The first notices that this agent's host receives."""
    async with asyncio.timeout(LIMIT_SECONDS), aclosing(agent.watch()) as notices:
        return [await anext(notices) for _ in range(count)]


class LauncherError(Exception):
    """What a launcher's part may raise."""


@in_clean_loop
async def test_notifications_during_a_broken_connection_arrive_after_it() -> None:
    async with (
        open_stage() as stage,
        open_network(stage.port) as network,
        stage.agent("b", address=network.address) as b,
        asyncio.timeout(LIMIT_SECONDS),
        aclosing(b.watch()) as notices,
    ):
        first = asyncio.ensure_future(anext(notices))
        await happen(lambda: bool(stage.server.topic("b")._subscribers))
        await network.cut()
        await happen(lambda: not stage.server.topic("b")._subscribers)
        await form(stage)
        await network.mend()
        assert await first == ON_B
        await network.cut()
        async with stage.agent("a") as a:
            await a.open_sequencer(1, SEQUENCER)
        await network.mend()
        assert [await anext(notices) for _ in range(2)] == [ON_B, Announce(1, SEQUENCER)]


@in_clean_loop
async def test_one_call_joins_all_workers_of_a_host_and_refuses_workers_of_another_host() -> None:
    async with open_stage() as stage, stage.agent("a") as a, stage.agent("b") as b:
        await join(b, B1, B0)
        first, second, foreign = (codec.encode(Joined(worker)) for worker in (A0, A1, B0))
        with pytest.raises(grpc.aio.AioRpcError, match="is not that of host 'b'"):
            await a.stub.Join(pb.JoinRequest(joined=[first, foreign]))
        assert stage.server.state.count(WorkerState.WAITING) == 2
        await a.stub.Join(pb.JoinRequest(joined=[first, second]))
        assert await read(b, 1) == [ON_B]


@pytest.mark.nightly
@in_clean_loop
async def test_a_burst_of_calls_is_answered() -> None:
    async with open_stage() as stage, stage.agent("a") as a:
        await asyncio.gather(*(a.report(number, [], [], 3 * LIMIT_SECONDS) for number in range(1, 3101)))


@in_clean_loop
async def test_a_report_that_was_repeated_or_overtaken_is_acknowledged_and_ignored() -> None:
    async with open_stage() as stage, stage.agent("a") as a:
        await a.report(2, [A0, A1], [], LIMIT_SECONDS)
        ordered = len(stage.effects)
        for number in (2, 1):
            await a.report(number, [], [Exited(A0, 1)], LIMIT_SECONDS)
        assert (stage.server.state.ended, len(stage.effects)) == (0, ordered)
        await a.report(3, [A1], [Exited(A0, 1)], LIMIT_SECONDS)
        assert stage.server.state.ended == 1
        assert isinstance(stage.effects[-1], Terminate)


@in_clean_loop
async def test_a_stop_notice_that_an_agent_reports_counts_once() -> None:
    async with open_stage() as stage, stage.agent("b") as b:
        for number in (1, 2):
            await b.report(number, [B0, B1], [], LIMIT_SECONDS, is_noticed=True)
        (reported,) = [effect for effect in stage.effects if isinstance(effect, Notify)]
        assert reported.host is None  # the job is static
        assert "host b" in reported.reason


@in_clean_loop
async def test_a_report_that_is_malformed_changes_nothing() -> None:
    async with open_stage() as stage:
        before = stage.server.state
        end = codec.encode(Exited(A0, 1))
        for report in (
            pb.AgentReport(host="a", exited=[end]),
            pb.AgentReport(host="a", number=1, exited=[end, pb.Exited()]),
            pb.AgentReport(host="a", number=1, exited=[end], running=[pb.WorkerId(host="a")]),
        ):
            with pytest.raises(WireError):
                stage.server.receive(report)
        assert stage.server.state == before


@in_clean_loop
async def test_malformed_and_illegal_calls_are_refused_with_the_reason_and_change_nothing() -> None:
    def report(agent: AgentClient, number: int, *ends: Exited) -> Coroutine[Any, Any, None]:
        return agent.report(number, [], ends, LIMIT_SECONDS)

    async with open_stage() as stage, stage.agent("a") as a, stage.agent("c") as c:
        await form(stage)
        before = stage.server.state
        refusals: list[tuple[Coroutine[Any, Any, object], str]] = [
            (join(a, A0, after=7), "FAILED_PRECONDITION.*generation 7 has not been published"),
            (join(a, Worker(Slot("a", 9), 1)), "FAILED_PRECONDITION.*slot a:9 is not in use"),
            (join(a, Worker(Slot("a", 0), 3)), "FAILED_PRECONDITION.*incarnation 3 of slot a:0 was never started"),
            (join(c, Worker(Slot("c", 0), 1)), "FAILED_PRECONDITION.*slot c:0 is not in use"),
            (c.open_sequencer(1, SEQUENCER), "rank 0 .a:0. is on another host"),
            (join(a, Worker(Slot("a", 0), 0)), "INVALID_ARGUMENT.*a worker without host or incarnation"),
            (report(a, 0), "a report without number"),
            (report(a, 1, Exited(A0, 0), Exited(B0, 1)), "b:0 is not on host a"),
            (report(a, 1, Exited(Worker(Slot("a", 9), 1), 0)), "slot a:9 is not in use"),
            (report(c, 1), "host c is not in use"),
        ]
        for call, reason in refusals:
            with pytest.raises((grpc.aio.AioRpcError, CallRefusedError), match=f"(?s){reason}"):
                await call
        assert (stage.server.state.workers, stage.server.state.phase) == (before.workers, before.phase)
        assert stage.server.state.ended == 0


@in_clean_loop
async def test_the_clock_of_the_server_runs() -> None:
    async with open_stage([Host("a", 1)], start_timeout_seconds=0.01, grace_seconds=0.0, lease_seconds=0.01) as stage:
        await happen(lambda: isinstance(stage.effects[-1], Finish))
        finish = stage.effects[-1]
        assert isinstance(finish, Finish)
        assert finish.outcome.cause is Cause.START_TIMED_OUT


@in_clean_loop
async def test_an_error_of_the_clock_is_raised_in_the_owner_of_the_server() -> None:
    def refuse_to_end(effect: Effect) -> None:
        if isinstance(effect, Terminate):
            raise LauncherError

    credential = Authority("job").issue_server()
    policy = Policy.static(1, start_timeout_seconds=0.01)
    with pytest.raises(LauncherError):  # noqa: PT012 - raised where the block is left
        async with asyncio.timeout(LIMIT_SECONDS), Server(policy, refuse_to_end, credential) as server:
            await server.open(LOOPBACK)
            server.submit(HostsChanged((Host("a", 1),)))
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0  # or the next timeout would take itself for a cancellation


@in_clean_loop
async def test_a_server_that_closes_ends_its_calls_and_frees_its_port() -> None:
    async with open_stage() as stage, stage.agent("a") as a:
        watching = asyncio.create_task(read(a, 1))
        await happen(lambda: bool(stage.server.topic("a")._subscribers))
        await stage.server.close()
        await happen(lambda: not stage.server.topic("a")._subscribers)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(LOOPBACK, stage.port)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.parametrize("steps", range(4))
@in_clean_loop
async def test_a_server_whose_opening_is_cancelled_at_any_step_closes_silently(steps: int) -> None:
    async with Server(Policy.static(1), lambda _: None, Authority("job").issue_server()) as server:
        opening = asyncio.create_task(server.open(LOOPBACK))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening}, timeout=LIMIT_SECONDS)


@in_clean_loop
async def test_an_address_of_another_machine_is_refused_and_the_others_keep_serving() -> None:
    async with open_stage([Host("a", 1)]) as stage, stage.agent("a") as a:
        with pytest.raises(ListenError, match=r"cannot listen at 192\.0\.2\.1: [^;]+$"):
            await stage.server.open("192.0.2.1")
        await a.report(1, [A0], [], LIMIT_SECONDS)


@in_clean_loop
async def test_a_server_listens_on_a_port_that_another_process_keeps_for_it() -> None:
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind((LOOPBACK, 0))
        port = keeper.getsockname()[1]
        for _ in range(2):
            async with Server(Policy.static(1), lambda _: None, Authority("job").issue_server()) as server:
                assert await server.open(LOOPBACK, port) == port
                with pytest.raises(ListenError, match="cannot listen at"):
                    await server.open(LOOPBACK, port)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@in_clean_loop
async def test_a_server_listens_on_ipv6() -> None:
    authority = Authority("job")
    async with Server(Policy.static(1), lambda _: None, authority.issue_server()) as server:
        port = await server.open("::1")
        server.submit(HostsChanged((Host("a", 1),)))
        client = AgentClient(f"[::1]:{port}", "a", authority.issue_agent("a"))
        await client.report(1, [A0], [], LIMIT_SECONDS)
        assert server.state.last_heard["a"] is not None
        await client.close()


@in_clean_loop
async def test_a_server_listens_on_several_addresses() -> None:
    async with open_stage([Host("a", 2)]) as stage:
        other = await stage.server.open("127.0.0.2")
        async with stage.agent("a", address=f"127.0.0.2:{other}") as there, stage.agent("a") as here:
            await here.report(1, [A0], [], LIMIT_SECONDS)
            await there.report(2, [A0], [Exited(A1, 0)], LIMIT_SECONDS)
            assert stage.server.state.ended == 1
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(LOOPBACK, other)
        await stage.server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.2", other)


@in_clean_loop
async def test_events_submitted_during_effects_are_performed_after_them() -> None:
    carried_out: list[str] = []

    def carry_out(effect: Effect) -> None:
        carried_out.append(f"{type(effect).__name__} {getattr(effect, 'worker', '')}".strip())
        if carried_out == ["Launch a:0"]:
            server.submit(Lost("a", "it cannot be reached"))
            assert carried_out == ["Launch a:0"]

    server = Server(Policy.static(2), carry_out, Authority("job").issue_server())
    async with server:
        await server.open(LOOPBACK)
        server.submit(HostsChanged((Host("a", 1), Host("b", 1))))
        assert carried_out == ["Launch a:0", "Launch b:0", "Terminate b:0"]


@in_clean_loop
async def test_an_effect_that_fails_does_not_prevent_the_others() -> None:
    carried_out: list[Effect] = []

    def carry_out(effect: Effect) -> None:
        carried_out.append(effect)
        raise LauncherError(len(carried_out))

    async with Server(Policy.static(3), carry_out, Authority("job").issue_server()) as server:
        await server.open(LOOPBACK)
        with pytest.raises(LauncherError, match="1"):
            server.submit(HostsChanged((Host("a", 3),)))
        assert len(carried_out) == 3
        with pytest.raises(LauncherError, match="4"):  # nothing is left over, nothing stays shut
            server.submit(Exited(A0, 1))


@in_clean_loop
async def test_an_error_of_the_launcher_in_an_agents_call_is_raised_in_the_launcher() -> None:
    def carry_out(effect: Effect) -> None:
        if isinstance(effect, Finish):
            raise LauncherError

    async def report(address: str, authority: Authority) -> None:
        client = AgentClient(address, "a", authority.issue_agent("a"))
        try:
            await client.report(1, [], [Exited(A0, 0)], LIMIT_SECONDS)
        finally:
            await client.close()

    authority = Authority("job")
    server = Server(Policy.static(1), carry_out, authority.issue_server())
    with pytest.raises(LauncherError):  # noqa: PT012 - raised where the block is left
        async with asyncio.timeout(LIMIT_SECONDS), server:
            port = await server.open(LOOPBACK)
            server.submit(HostsChanged((Host("a", 1),)))
            reporting = asyncio.create_task(report(f"{LOOPBACK}:{port}", authority))
            await asyncio.Event().wait()
    with pytest.raises((CallRefusedError, UnreachableError)):  # the server may be closed before it has answered
        await reporting


@in_clean_loop
async def test_an_unexpected_error_of_a_subscription_is_raised_in_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LauncherError

    monkeypatch.setattr(Server, "topic", fail)
    with pytest.raises(LauncherError):  # noqa: PT012 - raised where the block is left
        async with open_stage([Host("a", 1)]) as stage, stage.agent("a") as a:
            with pytest.raises((CallRefusedError, UnreachableError)):
                await read(a, 1)


@in_clean_loop
async def test_publishing_costs_as_much_as_there_are_workers() -> None:
    async def count(hosts: int) -> int:
        """The work of the last join."""
        async with open_stage([Host(f"h{number}", 4) for number in range(hosts)]) as stage:
            *others, last = (record.worker for record in stage.server.state.workers.values())
            for worker in others:
                stage.server.submit(Joined(worker))
            steps = count_steps(lambda: stage.server.submit(Joined(last)))
            assert len(stage.server._topics._topics) == hosts
            return steps

    assert await count(200) < 1.5 * 8 * await count(25)


LASTING = Policy.elastic(1, 4, 3, lease_seconds=LIMIT_SECONDS, recovery=Recovery(cooldown_seconds=(0.0, 0.0)))


@in_clean_loop
async def test_an_agent_that_was_replaced_is_refused_and_its_successor_is_accepted() -> None:
    async with open_stage(policy=LASTING) as stage, stage.agent("a") as a, stage.agent("b") as former:
        assert stage.server.number_agent("b") == 1
        await join(a, A0, A1)
        await join(former, B0, B1)
        for worker in (A0, A1, B0, B1):
            stage.server.submit(Declared(worker))
        await former.report(500, [B0, B1], [], LIMIT_SECONDS)
        async with aclosing(former.watch()) as notices:
            await anext(notices)
            stage.server.submit(Lost("b", "its agent was silent"))
            dismissal = Dismiss("b", 1, "host b was lost: its agent was silent", is_lost=True)
            launches = [effect.worker for effect in stage.effects if isinstance(effect, Launch)]
            assert dismissal in stage.effects
            assert launches[-2:] == [Worker(B0.slot, 2), Worker(B1.slot, 2)]
            with pytest.raises(CallRefusedError, match="host 'b' was lost, and another agent has replaced this one"):
                await exhaust(notices)
        with pytest.raises(CallRefusedError, match="was lost, and another agent"):
            await former.report(501, [B0, B1], [], LIMIT_SECONDS)
        with pytest.raises(grpc.aio.AioRpcError, match="was lost, and another agent"):
            await join(former, B0)
        assert stage.server.number_agent("b") == 2
        async with stage.agent("b") as latter:
            await latter.report(1, launches[-2:], [], LIMIT_SECONDS)
            assert stage.server.state.last_heard["b"] is not None
            await join(latter, launches[-1])


@in_clean_loop
async def test_a_dismissal_that_is_performed_twice_counts_once() -> None:
    async with open_stage(policy=LASTING) as stage:
        for _ in range(2):
            stage.server._perform(Dismiss("b", 1, "host b is no longer listed"))
        assert stage.server.number_agent("b") == 2


@in_clean_loop
async def test_an_agent_whose_host_the_job_leaves_is_answered_until_it_ends() -> None:
    """The output of its workers may still be read, for as long as the reader likes."""
    async with open_stage(policy=LASTING) as stage, stage.agent("b") as b:
        await b.report(6, [B0, B1], [], LIMIT_SECONDS)
        async with aclosing(b.watch()) as notices:
            stage.server.submit(HostsChanged((Host("a", 2),)))
            await b.report(7, [], [Exited(B0, -15), Exited(B1, -15)], LIMIT_SECONDS)
            assert Dismiss("b", 1, "host b is no longer listed") in stage.effects
            watching = asyncio.ensure_future(exhaust(notices))
            state = stage.server.state
            await b.report(8, [B0], [], LIMIT_SECONDS, is_noticed=True)
            await b.open_sequencer(7, SEQUENCER)
            assert stage.server.state is state
            stage.server.submit(HostsChanged((Host("a", 2), Host("b", 2))))
            async with stage.agent("b") as successor:
                await successor.report(1, [], [], LIMIT_SECONDS)
                assert stage.server.state.last_heard["b"] is not None
            await b.report(9, [], [], LIMIT_SECONDS)
            assert not watching.done()
            watching.cancel()
            await asyncio.wait({watching})


@in_clean_loop
async def test_an_agent_is_heard_where_a_stop_notice_has_dismissed_the_former_one() -> None:
    policy = replace(LASTING, grace_seconds=0.0)  # the host is offered again soon after the notice
    async with open_stage(policy=policy) as stage, stage.agent("a") as a, stage.agent("b") as former:
        await join(a, A0, A1)
        await join(former, B0, B1)
        await former.report(7, [], [Exited(B0, 1), Exited(B1, 1)], LIMIT_SECONDS)
        await former.report(8, [], [], LIMIT_SECONDS, is_noticed=True)
        assert Dismiss("b", 1, "host b got a stop notice") in stage.effects
        for worker in (A0, A1):
            stage.server.submit(Declared(worker))
        await happen(lambda: "b" in stage.server.state.hosts)
        async with stage.agent("b") as successor:
            await successor.report(1, [], [], LIMIT_SECONDS)
        assert stage.server.state.last_heard["b"] is not None


async def exhaust(notices: AsyncIterator[Notification]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in notices:
            pass
