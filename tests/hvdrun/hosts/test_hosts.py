"""The hosts of a job: found, brought in together, lost, left; how they are reached is in test_network_plan.py."""

import asyncio
import math
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from hvdrun import __version__
from hvdrun.errors import HostLostEarlyError, HostsFailedError, HostsOverdueError, LaunchError, OtherUserError
from hvdrun.hosts import hello as hello_module
from hvdrun.hosts import hosts as hosts_module
from hvdrun.hosts.discovery_script import DiscoveryImpossibleError
from hvdrun.hosts.network_plan import Answer, NetworkPlan, Route
from hvdrun.hosts.preparation import prepare
from hvdrun.hosts.sources import FixedHosts
from hvdrun.network.errors import SameMachineError
from hvdrun.spec.command import LookupContext
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.limits import Elasticity
from hvdrun.spec.remote import Remote
from hvdrun.transport.transport_errors import VersionMismatchError
from rendezvous.core.messages import Dismiss, HostsChanged, Lost
from rendezvous.core.model import Endpoint, Host
from rendezvous.core.outcome import TEMPORARY_FAILURE, Cause, Outcome
from rendezvous.wire.orders import Addresses, Release
from tests.hvdrun.hosts.office import Office, opened
from tests.hvdrun.played_agent import HOW_IT_ENDED, Machine
from tests.hvdrun.specs import build_spec, with_fields
from tests.waiting import happen, in_loop

NameHosts = Callable[[str], None]
ROUTE = Route("127.0.0.1", "", Endpoint("127.0.0.1", 1))
MASTER = Endpoint("127.0.0.1", 5000)
A, B, C = NAMES = ("localhost", "127.0.0.1", "127.0.0.2")  # loopback names stand for several hosts
ABC = tuple(Host(name, 1) for name in "abc")


def make_elastic(start_timeout_seconds: float = 60.0) -> JobSpec:
    hosts = tuple(Host(name, 1) for name in NAMES)
    return build_spec(("true",), 1, hosts, Path("/"), Elasticity(1), start_timeout_seconds=start_timeout_seconds)


def make_static(start_timeout_seconds: float = 60.0) -> JobSpec:
    hosts = (Host("localhost", 1), Host("127.0.0.1", 1))
    return build_spec(("true",), 2, hosts, Path("/"), start_timeout_seconds=start_timeout_seconds)


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    return build_spec(("true",), 1, (Host("localhost", 2), Host("127.0.0.1", 1)), tmp_path, Elasticity(1))


@pytest.fixture
def name_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NameHosts:
    """`name_hosts(text)` has the script `cat hosts` print this text, from one moment to the next."""
    monkeypatch.chdir(tmp_path)

    def name_hosts(text: str) -> None:
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").rename(tmp_path / "hosts")

    return name_hosts


@in_loop
async def test_hosts_are_brought_in_when_they_are_wanted(spec: JobSpec) -> None:
    async with opened(spec) as office:
        assert office.events == [HostsChanged(spec.workers.hosts)]
        assert office.agents == {}
        begin = await office.bring_in("localhost")
        assert (begin.job, begin.address) == ("job", "127.0.0.1")
        assert begin.environment[b"HOROVOD_ELASTIC"] == b"1"
        assert begin.environment[b"OMP_NUM_THREADS"] == b"1"  # two slots
        assert [*office.agents] == ["localhost"]


@in_loop
async def test_a_lost_host_may_get_another_agent_with_an_identity_of_its_own(spec: JobSpec) -> None:
    async with opened(spec) as office:
        await office.bring_in("localhost")
        office.agents["localhost"][0].end()
        await office.until(lambda: Lost("localhost", HOW_IT_ENDED) in office.events)
        office.numbers["localhost"] = 2
        assert (await office.bring_in("localhost")).job == "job~2"


@in_loop
async def test_the_agent_of_a_former_launcher_is_reached_by_its_stream_and_is_not_started_again(spec: JobSpec) -> None:
    async with opened(spec) as office:
        stream = office.streams["localhost"]
        await office.hosts.adopt("localhost")
        office.hosts.want("localhost")
        assert (office.begun, office.agents) == (["localhost"], {})
        async with aclosing(stream.orders()) as orders:
            office.hosts.dismiss(Dismiss("localhost", 1, "it got a stop notice"))
            assert await anext(orders) == Release(TEMPORARY_FAILURE)
        await stream.receive(1, [], is_last=True)


@pytest.mark.parametrize(("detaches", "has_key"), [(True, False), (False, True), (True, True)])
@in_loop
async def test_a_key_that_an_ssh_agent_has_alone_is_said_once_in_a_job_that_outlives_it(
    spec: JobSpec, *, detaches: bool, has_key: bool
) -> None:
    async with opened(with_fields(spec, display=replace(spec.display, detach=detaches))) as office:
        if has_key:
            office.agent_keys.update(("localhost", "127.0.0.1"))
        for host in ("localhost", "127.0.0.1"):
            await office.bring_in(host)
        said = [each for each in office.said if "the SSH agent alone has the key of localhost: " in each]
        assert len(said) == (detaches and has_key)
        assert all("log in there again after the loss of a host; " in each for each in said)


@in_loop
async def test_the_agent_of_a_dismissed_host_is_released(spec: JobSpec) -> None:
    async with opened(spec) as office:
        await office.bring_in("localhost")
        office.hosts.dismiss(Dismiss("localhost", 1, "it got a stop notice"))
        assert office.pool.hosts == ()
        assert isinstance(office.agents["localhost"][0].orders[-1], Release)
        assert not office.agents["localhost"][0].is_abandoned


@in_loop
async def test_the_agent_of_a_lost_host_is_killed(spec: JobSpec) -> None:
    async with opened(spec) as office:
        office.hosts.dismiss(Dismiss("localhost", 1, "it was lost", is_lost=True))  # the host has no agent yet
        await office.bring_in("localhost")
        office.hosts.dismiss(Dismiss("localhost", 1, "it was lost", is_lost=True))
        assert office.pool.hosts == ()
        await office.until(lambda: office.agents["localhost"][0].is_abandoned)
        assert office.events == [HostsChanged(spec.workers.hosts)]


@in_loop
async def test_a_job_ends_when_no_fixed_host_can_be_used(spec: JobSpec) -> None:
    async def want_both() -> None:
        async with opened(spec) as office:
            office.failures = {"localhost": "it is down."}
            office.hosts.want("localhost")
            office.hosts.want("127.0.0.1")
            await office.until(lambda: "127.0.0.1" in office.agents)
            office.agents["127.0.0.1"][0].end()
            await office.until(lambda: False)

    with pytest.raises(HostsFailedError) as caught:
        await want_both()
    lost = f"the host '127.0.0.1' was lost before the job began: {HOW_IT_ENDED}."
    assert caught.value.lines[1:] == ("it is down.", lost)


@in_loop
async def test_agents_that_cannot_serve_end_a_job_that_has_no_others() -> None:
    async def refuse() -> None:
        async with opened(make_elastic()) as office:
            await office.bring_in(A)
            office.hosts.refuse(A, LaunchError("no room."))
            await office.until(lambda: False)

    with pytest.raises(LaunchError, match=r"^no room\.$"):
        await refuse()


@in_loop
async def test_an_elastic_job_continues_without_an_agent_that_cannot_serve() -> None:
    async with opened(make_elastic()) as office:
        await office.bring_in(A)
        await office.bring_in(B)
        office.hosts.refuse(A, LaunchError("no room."))
        await office.until(lambda: bool(office.lost))
        assert office.events[-1] == Lost(A, "no room.")
        assert office.begun == [B]


@in_loop
async def test_the_loss_of_a_host_that_the_job_has_left_is_no_news(spec: JobSpec) -> None:
    async with opened(spec) as office:
        office.hosts.lose("stranger", "it ended")
        assert office.events == [HostsChanged(spec.workers.hosts)]


def discover(spec: JobSpec, script: str) -> JobSpec:
    side = Remote(frozenset(), ("true",), sys.executable)
    return with_fields(spec, hosts=(), elasticity=Elasticity(1, script=script), remote=side)


@in_loop
async def test_the_rendezvous_hears_what_the_script_names(spec: JobSpec, name_hosts: NameHosts) -> None:
    name_hosts("localhost:1\n")
    async with opened(discover(spec, "cat hosts")) as office:
        name_hosts("localhost:1\n127.0.0.1:2\n")
        await office.until(lambda: len(office.events) == 2)
        first, second = Host("localhost", 1), Host("127.0.0.1", 2)
        assert office.events == [HostsChanged((first,)), HostsChanged((first, second))]
        assert office.said == ["the script names new hosts: 127.0.0.1 (2 slots)."]
        office.failures["localhost"] = "it is down."
        office.hosts.want("localhost")
        await office.until(lambda: office.events[-1] == Lost("localhost", "it is down."))  # others may come


@in_loop
async def test_a_job_that_has_begun_ignores_a_bad_answer(spec: JobSpec, name_hosts: NameHosts) -> None:
    name_hosts("localhost\n")
    async with opened(discover(spec, "cat hosts")) as office:
        await office.bring_in("localhost")
        name_hosts("nobody@127.0.0.1\n")
        await office.until(lambda: len(office.said) == 1)
        assert office.said[0].startswith("what the script names now is not taken: nobody@127.0.0.1 is this machine")
        assert len(office.events) == 1


@pytest.mark.parametrize(
    ("script", "error"), [("echo nobody@localhost", OtherUserError), ("./nowhere", DiscoveryImpossibleError)]
)
@in_loop
async def test_a_first_answer_that_cannot_be_used_ends_the_job(
    spec: JobSpec, script: str, error: type[LaunchError]
) -> None:
    with pytest.raises(error):
        async with opened(discover(spec, script)) as office:
            await office.until(lambda: False)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Which hosts are brought in together."""
    asked: list[list[str]] = []
    extend = NetworkPlan.extend

    async def note(plan: NetworkPlan, spec: JobSpec, newcomers: list[str]) -> dict[str, Answer]:
        asked.append(newcomers)
        return await extend(plan, spec, newcomers)

    monkeypatch.setattr(NetworkPlan, "extend", note)
    return asked


@in_loop
async def test_the_first_hosts_are_brought_in_together(batches: list[list[str]]) -> None:
    async with opened(with_fields(make_elastic(), size=3), *NAMES) as office:
        for host in NAMES:
            office.hosts.want(host)
            office.hosts.want(host)  # again, and it is the same agent
        await happen(lambda: len(office.agents) == 3)
        for host in (B, C, A):
            office.let_start(host)
            await asyncio.sleep(0)
        await office.until(lambda: len(office.begun) == 3)
        assert batches == [[A, B, C]]


@in_loop
async def test_a_slow_host_delays_the_others_only_for_a_while(batches: list[list[str]]) -> None:
    async with opened(with_fields(make_elastic(), size=3), A, B) as office:
        office.hosts._patience_seconds = 0.05
        office.hosts.want(A)
        office.hosts.want(B)
        office.let_start(A)
        await office.until(lambda: office.begun == [A])
        office.let_start(B)
        await office.until(lambda: office.begun == [A, B])
        assert batches == [[A], [B]]
        assert office.hosts._patience_seconds == hosts_module.GATHER_SECONDS


@in_loop
async def test_as_many_hosts_as_a_job_starts_with_do_not_wait_long_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "GATHER_SECONDS", 0.05)
    async with opened(make_elastic(), A, B) as office:
        office.hosts._patience_seconds = math.inf
        office.hosts.want(A)
        office.hosts.want(B)
        office.let_start(A)
        await office.until(lambda: office.begun == [A])


@in_loop
async def test_a_static_job_waits_for_each_of_its_hosts(
    batches: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the hosts that are ready have slots enough, of which it uses some."""
    monkeypatch.setattr(hosts_module, "GATHER_SECONDS", 0)
    spec = build_spec(("true",), 4, (Host(A, 2), Host(B, 4)), Path("/"))
    prepared, _ = prepare(spec, LookupContext(Path("/"), None, sys.executable), lambda _: True)
    async with opened(prepared, A) as office:
        await office.until(lambda: B in office.hosts._ready)
        for _ in range(10):
            await asyncio.sleep(0)
        office.let_start(A)
        await office.until(lambda: office.begun == [A, B])
        assert batches == [[A, B]]


@in_loop
async def test_each_host_of_an_elastic_job_fails_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def extend(_: NetworkPlan, _spec: JobSpec, newcomers: list[str]) -> dict[str, Answer]:
        return {host: LaunchError("no way") if host == C else ROUTE for host in newcomers}

    monkeypatch.setattr(NetworkPlan, "extend", extend)
    async with opened(make_elastic(), failures={B: "it is down"}) as office:
        for host in NAMES:
            office.hosts.want(host)
        await office.until(lambda: office.begun == [A] and len(office.lost) == 2)
        assert office.lost == {B: "it is down", C: "no way"}


@in_loop
async def test_a_second_name_of_one_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def extend(_: NetworkPlan, _spec: JobSpec, newcomers: list[str]) -> dict[str, Answer]:
        return {host: SameMachineError((A, B), "10.0.0.1") if host == B else ROUTE for host in newcomers}

    monkeypatch.setattr(NetworkPlan, "extend", extend)
    monkeypatch.setattr(hosts_module, "choose_source", lambda spec, *_, **__: FixedHosts(spec))
    async with opened(make_elastic()) as office:
        for host in (A, B):
            office.hosts.want(host)
        await office.until(lambda: bool(office.lost))
        (lost,) = [event for event in office.events if isinstance(event, Lost)]
        assert (lost.host, lost.is_refused) == (B, True)


@pytest.mark.parametrize(("error", "words"), [(OSError(24, "no files"), "no files"), (ValueError("x"), "a bug in")])
@in_loop
async def test_an_unexpected_error_fails_a_host_of_an_elastic_job(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    async with opened(make_elastic()) as office:
        await office.bring_in(B)
        monkeypatch.setattr(Machine, "open", AsyncMock(side_effect=error))
        office.hosts.want(A)
        await office.until(lambda: bool(office.lost))
        assert words in office.lost[A]


@pytest.mark.parametrize(("error", "is_bug"), [(OSError(24, "no files"), False), (ValueError("x"), True)])
@in_loop
async def test_a_job_that_ends_with_a_host_ends_with_its_bug_until_that_host_begins(
    monkeypatch: pytest.MonkeyPatch, error: Exception, *, is_bug: bool
) -> None:
    async with opened(make_elastic()) as office:
        await office.bring_in(B)
        with monkeypatch.context() as patches:
            patches.setattr(Machine, "open", AsyncMock(side_effect=error))
            office.hosts.want(A)
            await office.until(lambda: bool(office.lost))
        assert office.begun == [B]
        assert f"{type(error).__name__}: {error}" in office.details  # with the traceback
        lost = Outcome(TEMPORARY_FAILURE, Cause.HOST_LOST, "host a was lost", host=A)
        assert office.hosts.find_bug(lost) is (error if is_bug else None)
        assert office.hosts.find_bug(replace(lost, host=B)) is None
        assert office.hosts.find_bug(replace(lost, exit_code=3)) is None
        await office.bring_in(A)
        assert office.hosts.find_bug(lost) is None


@in_loop
async def test_an_agent_that_does_not_start_in_time_is_a_failure() -> None:
    async with opened(with_fields(make_elastic(start_timeout_seconds=0.05)), A) as office:
        await office.bring_in(B)
        office.hosts.want(A)
        await office.until(lambda: bool(office.lost))
        assert office.lost[A] == str(HostsOverdueError([A], 0.05))


@in_loop
async def test_a_dismissed_host_is_not_brought_in_and_may_be_wanted_again() -> None:
    async with opened(make_elastic(), A, B) as office:
        office.hosts.want(A)
        office.hosts.want(B)
        office.hosts.dismiss(Dismiss(A, 1, "it was lost", is_lost=True))
        office.let_start(B)
        await office.until(lambda: office.begun == [B])
        office.hosts.want(A)
        office.let_start(A)
        await office.until(lambda: set(office.begun) == {A, B})
        assert office.lost == {}


@in_loop
@pytest.mark.parametrize("answer", [LaunchError("no way"), ROUTE])
async def test_an_answer_about_the_former_agent_of_a_host_is_not_about_the_next_one(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    may_answer = asyncio.Event()

    async def extend(_: NetworkPlan, _spec: JobSpec, newcomers: list[str]) -> dict[str, Answer]:
        asked.append(newcomers)
        if len(asked) > 1:
            assert office.begun == []
            return dict.fromkeys(newcomers, ROUTE)
        await may_answer.wait()
        return dict.fromkeys(newcomers, answer)

    monkeypatch.setattr(NetworkPlan, "extend", extend)
    async with opened(make_elastic()) as office:
        office.hosts.want(A)
        await office.until(lambda: asked == [[A]])
        office.hosts.dismiss(Dismiss(A, 1, "it was lost", is_lost=True))
        office.hosts.want(A)
        await office.until(lambda: office.pool.is_open(A) and not office.hosts._opening)
        may_answer.set()
        await office.until(lambda: office.begun == [A])
        assert asked == [[A], [A]]
        assert office.lost == {}


@in_loop
async def test_hosts_of_a_static_job_that_do_not_start_in_time_are_named() -> None:
    with pytest.raises(HostsOverdueError) as caught:
        async with opened(make_static(start_timeout_seconds=0.05), "127.0.0.1") as office:
            await office.until(lambda: False)
    assert caught.value.hosts == ("127.0.0.1",)


@in_loop
async def test_all_hosts_of_a_static_job_that_cannot_be_used_are_named() -> None:
    spec = build_spec(("true",), 3, ABC, Path("/"))

    async def fail_late() -> None:
        async with opened(spec, "a", failures={"a": "a is down.", "c": "c is away."}) as office:
            await office.until(lambda: "c" not in office.pool.hosts)
            office.let_start("a")
            await office.until(lambda: False)

    with pytest.raises(HostsFailedError) as caught:
        await fail_late()
    assert caught.value.lines == ("2 of 3 hosts cannot be used:", "a is down.", "c is away.")


@in_loop
async def test_all_hosts_with_another_version_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello_module, "__version__", "9.9")
    with pytest.raises(HostsFailedError) as caught:
        async with opened(make_static()) as office:
            await office.until(lambda: False)
    failures = [error for error in caught.value.failures if isinstance(error, VersionMismatchError)]
    reported = [(error.host, error.theirs, error.ours) for error in failures]
    assert reported == [(host, __version__, "9.9") for host in ("localhost", "127.0.0.1")]


@in_loop
async def test_an_agent_of_a_static_job_that_ends_before_the_rendezvous_is_there_ends_the_job() -> None:
    async def end_early() -> None:
        async with opened(make_static(), serves=False) as office:
            await happen(lambda: "localhost" in office.agents)
            office.agents["localhost"][0].end()
            await happen(lambda: "localhost" not in office.pool.hosts)
            office.serve()
            await office.until(lambda: False)

    with pytest.raises(HostLostEarlyError, match="'localhost' was lost before the job began: its agent ended"):
        await end_early()


@in_loop
async def test_a_silent_agent_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello_module, "HELLO_SECONDS", 0.05)
    spec = with_fields(make_static(), remote=Remote(frozenset({"localhost"}), ("true",), sys.executable))
    silent = Machine(hello=Addresses(()))
    monkeypatch.setattr(Office, "_reach", lambda _, host, _spec: silent if host == "localhost" else Machine())
    with pytest.raises(
        LaunchError, match=r"^the agent on the host 'localhost' said nothing within 0\.05 s: look whether"
    ):
        async with opened(spec) as office:
            await office.until(lambda: False)


@in_loop
async def test_an_unexpected_error_ends_a_static_job_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "open", AsyncMock(side_effect=ValueError("x")))
    with pytest.raises(ValueError, match="x"):
        async with opened(make_static()) as office:
            await office.until(lambda: False)
