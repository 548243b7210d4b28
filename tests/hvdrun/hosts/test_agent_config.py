"""What the agents of a job receive: what is the same for all, and what is each host's own."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdrun.hosts.agent_config import AgentConfig
from hvdrun.hosts.network_plan import Route
from hvdrun.processes.binding import BindTo
from hvdrun.shim.path import VARIABLE, ShimMode
from hvdrun.spec.jobspec import JobSpec
from hvdrun.spec.limits import Elasticity
from hvdrun.spec.remote import Remote
from rendezvous.core.model import Endpoint, Host, Restarts
from rendezvous.server.authority import Authority
from rendezvous.wire.orders import Begin, WorkerOptions
from tests.hvdrun.specs import build_spec, with_fields

ENVIRONMENT = {b"PATH": b"/mine", b"HOME": b"/home/me", b"COLOUR": b"green"}
ROUTE = Route("192.0.2.1", "eth0", Endpoint("192.0.2.250", 4000))


@pytest.fixture
def spec() -> JobSpec:
    """Two workers here, and one on `far`."""
    return build_spec(
        command=("/mine/python", "train.py"),
        size=3,
        hosts=(Host("localhost", 2), Host("far", 1)),
        directory=Path("/data"),
        remote=Remote(frozenset({"far"}), ("/theirs/python", "train.py"), "/theirs/python"),
        forwarded={b"SHAPE": b"round"},
        bind_to=BindTo.CORE,
        stdin_rank=1,
        lease_seconds=7,
    )


def write(spec: JobSpec, host: str, report: Callable[[str], None] = lambda _: None) -> Begin:
    return AgentConfig(spec, "job", Authority("job"), report, ENVIRONMENT).write(host, ROUTE)


@pytest.mark.parametrize("host", ["localhost", "far"])
def test_all_hosts_receive_the_description_of_the_job(spec: JobSpec, host: str) -> None:
    begin = write(spec, host)
    assert (begin.job, begin.host, begin.directory, begin.lease_seconds) == ("job", host, "/data", 7)
    assert begin.launcher_timeout_seconds == (60.0 if host == "far" else math.inf)
    assert begin.workers == WorkerOptions(bind_to="core", stdin_rank=1, prefork=True)
    assert (begin.server, begin.address, begin.interface) == ("192.0.2.250:4000", "192.0.2.1", "eth0")
    assert begin.credential.private_key
    assert (begin.outlives_losses, begin.looks_for_world, begin.server_timeout_seconds) == (False, False, None)


@pytest.mark.parametrize("host", ["localhost", "far"])
def test_agents_of_a_detached_job_outlive_their_launcher_on_every_host(spec: JobSpec, host: str) -> None:
    spec = with_fields(spec, detach=True, server_timeout_seconds=1.0)
    assert write(spec, host).server_timeout_seconds == 7  # the lease


def test_a_remote_host_has_a_command_of_its_own_and_keeps_its_login_s_environment(spec: JobSpec) -> None:
    begin = write(spec, "far")
    assert begin.command == ("/theirs/python", "train.py")
    assert begin.inherits
    assert begin.environment[b"SHAPE"] == b"round"
    assert begin.environment.keys().isdisjoint({b"HOME", b"COLOUR"})


def test_this_machine_has_all_of_the_launcher_s_environment(spec: JobSpec) -> None:
    begin = write(spec, "localhost")
    assert begin.command == ("/mine/python", "train.py")
    assert not begin.inherits
    assert begin.environment.items() >= {**ENVIRONMENT, b"SHAPE": b"round"}.items()


@pytest.mark.parametrize("host", ["localhost", "far"])
def test_all_workers_hear_what_horovod_is_to_mean(spec: JobSpec, host: str) -> None:
    own = with_fields(spec, horovod_shim=ShimMode.ON, forwarded={VARIABLE: b"auto"})
    assert write(own, host).environment[VARIABLE] == b"on"


def test_workers_that_share_a_host_use_one_thread_each_and_a_notice_says_why(spec: JobSpec) -> None:
    said: list[str] = []
    assert write(spec, "localhost", said.append).environment[b"OMP_NUM_THREADS"] == b"1"
    assert said == ["2 workers share localhost: OMP_NUM_THREADS=1, unless you set it"]
    said.clear()
    assert b"OMP_NUM_THREADS" not in write(spec, "far", said.append).environment
    assert (
        b"OMP_NUM_THREADS"
        not in write(
            with_fields(spec, size=1, stdin_rank=None, hosts=(Host("localhost", 1),)), "localhost", said.append
        ).environment
    )
    write(with_fields(spec, forwarded={b"OMP_NUM_THREADS": b"4"}), "localhost", said.append)
    assert said == []


def test_each_agent_of_a_host_has_an_identity_of_its_own(spec: JobSpec) -> None:
    config = AgentConfig(spec, "job", Authority("job"), lambda _: None, ENVIRONMENT)
    first, second = (config.write("far", ROUTE, number) for number in (1, 2))
    assert (first.job, second.job) == ("job", "job~2")
    assert first.credential.certificate != second.credential.certificate


def test_in_an_elastic_job_the_slots_of_a_host_count_and_hosts_may_come(spec: JobSpec) -> None:
    elastic = with_fields(spec, elasticity=Elasticity(1), stdin_rank=None, size=1, hosts=(Host("far", 4),))
    config = AgentConfig(elastic, "job", Authority("job"), lambda _: None, ENVIRONMENT)
    assert config.write("far", ROUTE).environment[b"OMP_NUM_THREADS"] == b"1"
    assert config.write("far", ROUTE).environment[b"HOROVOD_ELASTIC"] == b"1"
    assert b"OMP_NUM_THREADS" not in config.write("new", ROUTE).environment
    config.update(with_fields(elastic, hosts=(Host("far", 1), Host("new", 2))))
    assert b"OMP_NUM_THREADS" not in config.write("far", ROUTE).environment
    assert config.write("new", ROUTE).environment[b"OMP_NUM_THREADS"] == b"1"


def test_agents_of_a_job_that_outlives_losses_report_them_immediately_and_look_for_a_world(spec: JobSpec) -> None:
    fixed = with_fields(spec, stdin_rank=None)
    elastic = with_fields(fixed, elasticity=Elasticity(1, restarts=Restarts(None, needs_world=True)))
    begin = write(elastic, "far")
    assert (begin.outlives_losses, begin.looks_for_world) == (True, True)
    restarting = with_fields(fixed, elasticity=Elasticity(3, 3, restarts=Restarts(2), continues_in_place=False))
    begin = write(restarting, "far")
    assert (begin.outlives_losses, begin.looks_for_world) == (True, False)
    assert begin.environment[b"HOROVOD_ELASTIC"] == b"0"  # its workers are as those of a static job
    assert begin.environment[b"TORCHELASTIC_MAX_RESTARTS"] == b"2"
