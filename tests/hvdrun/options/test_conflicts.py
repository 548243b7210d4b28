"""Which options make a job elastic, and which do not go together."""

import shlex

import pytest

from hvdrun.cli.program import read_spec
from hvdrun.errors import UsageError
from hvdrun.spec.limits import Elasticity
from rendezvous.core.model import Host, Policy, Recovery, Restarts

AS_A_WORLD = Restarts(None, needs_world=True)


def test_a_least_number_of_workers_makes_a_job_elastic() -> None:
    spec = read_spec(shlex.split("-np 2 --min-np 1 -H a:2,b:2 true"))
    assert spec.limits.elasticity == Elasticity(1, restarts=AS_A_WORLD)
    assert (spec.workers.hosts, spec.limits.lease_seconds, spec.discovers) == ((Host("a", 2), Host("b", 2)), 5.0, False)
    assert spec.policy() == Policy.elastic(1, None, 2, restarts=AS_A_WORLD, lease_seconds=5.0)
    assert read_spec(shlex.split("-np 2 --min-np 1 true")).workers.hosts == (Host("localhost", 2),)


def test_a_discovery_script_takes_the_options_of_an_elastic_job() -> None:
    line = (
        "-np 2 --host-discovery-script './hosts.sh -a' --max-np 4 --slots-per-host 3 --elastic-timeout 1m "
        "--reset-limit 0 --blacklist-cooldown-range 2 3m --slot-failures 9 --slot-cooldown 5m --lease 7s true"
    )
    spec = read_spec(shlex.split(line))
    recovery = Recovery(0, 60.0, (2.0, 180.0), 9, 300.0)
    assert spec.limits.elasticity == Elasticity(2, 4, "./hosts.sh -a", 3, recovery, AS_A_WORLD)
    assert (spec.workers.hosts, spec.limits.lease_seconds, spec.discovers) == ((), 7.0, True)


def test_restarts_alone_keep_the_number_of_workers() -> None:
    spec = read_spec(shlex.split("-np 2 --max-restarts 3 -H a:2,b:2 --elastic-timeout 1m --grace 7s true"))
    restarts = Restarts(3, grace_seconds=7.0, planned_grace_seconds=7.0)
    recovery = Recovery(elastic_timeout_seconds=60.0)
    assert spec.limits.elasticity == Elasticity(2, 2, recovery=recovery, restarts=restarts, continues_in_place=False)
    assert (spec.limits.lease_seconds, spec.continues_in_place, spec.workers.hosts[1]) == (10.0, False, Host("b", 2))
    policy = spec.policy()
    assert (policy.is_elastic, policy.may_restart, policy.outlives_losses, policy.is_fixed) == (False, True, True, True)
    assert spec.variables[b"TORCHELASTIC_MAX_RESTARTS"] == b"3"


def test_restarts_of_an_elastic_job_are_limited_or_not_wanted() -> None:
    words = ["-np", "2", "--min-np", "1", "--checkpoint", "/data"]
    limited = read_spec([*words, "--max-restarts", "3", "--grow-after", "5m", "true"])
    assert limited.policy().restarts == Restarts(3, grow_after_seconds=300.0, has_checkpoint=True)
    assert limited.continues_in_place
    unwanted = read_spec([*words, "--max-restarts", "0", "true"]).policy()
    assert unwanted.restarts == Restarts(0, needs_world=True, has_checkpoint=True)  # a world ends with its first loss
    assert not unwanted.may_restart
    assert not read_spec(["-np", "2", "--max-restarts", "0", "true"]).is_elastic


def test_workers_get_a_variable_with_the_kind_of_the_job() -> None:
    words = ["-np", "2", "-x", "HOROVOD_ELASTIC=7"]
    spec = read_spec([*words, "true"])
    assert (spec.limits.elasticity, spec.limits.lease_seconds, spec.is_elastic) == (None, 30.0, False)
    assert spec.variables[b"HOROVOD_ELASTIC"] == b"0"
    assert read_spec([*words, "--min-np", "1", "true"]).variables[b"HOROVOD_ELASTIC"] == b"1"


def test_the_timeout_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "90")
    elasticity = read_spec(["-np", "2", "--min-np", "1", "true"]).limits.elasticity
    assert elasticity is not None
    assert elasticity.recovery.elastic_timeout_seconds == 90.0
    assert not read_spec(["-np", "2", "true"]).is_elastic


ELASTIC = "--max-np --slots-per-host --elastic-timeout --reset-limit --slot-failures --slot-cooldown"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        *((f"{flag} 4", f"^{flag} means nothing .*--min-np.*--host-discovery-script") for flag in ELASTIC.split()),
        ("--blacklist-cooldown-range 10 100", "^--blacklist-cooldown-range means nothing"),
        ("-v --log-level warning", "^--log-level contradicts -v, which is --log-level debug: give only one of them"),
        ("--min-np 3", "^--min-np 3 does not fit -np 2"),
        ("--min-np 1 --max-np 1", "^--max-np 1 does not fit -np 2"),
        ("--min-np 1 --reset-limit -1", "^--reset-limit takes a number from 0"),
        ("--min-np 1 --elastic-timeout 4s", "^--elastic-timeout 4s is shorter than the lease of 5 s"),
        ("--min-np 1 --lease 20s --elastic-timeout 10s", "shorter than the lease of 20 s"),
        ("--min-np 1 --blacklist-cooldown-range 20 10", "^--blacklist-cooldown-range 20 10 is impossible"),
        ("--min-np 1 --blacklist-cooldown-range 0 10", "^--blacklist-cooldown-range takes two times"),
        ("--min-np 1 --blacklist-cooldown-range 10", "^--blacklist-cooldown-range takes two times"),
        ("--min-np 1 --slots-per-host 2", "^--slots-per-host is for hosts that --host-discovery-script"),
        ("--min-np 1 -map-by node", "^-map-by node"),
        ("--min-np 1 --stdin 0", "^--stdin"),
        ("--min-np 1 -H a:1", "^2 workers do not fit into the 1 slot"),
        ("--max-restarts 3 --reset-limit 1", "^--reset-limit means nothing to a job whose workers are always started"),
        ("--max-restarts 3 --max-np 4", "^--max-np means nothing to a job whose workers are always started"),
        ("--max-restarts -1", "^--max-restarts takes a number from 0"),
        ("--max-restarts 3 --stdin 0", "^--stdin"),
        ("--max-restarts 3 --grow-after 1m", "^--grow-after is for a job whose size may change: give --min-np"),
        ("--min-np 1 --grow-after 1m", "^--grow-after plans a restart .*: give --max-restarts"),
        ("--host-discovery-script x -H a:2", "^-H and --host-discovery-script"),
        ("--host-discovery-script x --hostfile y", "^--hostfile and --host-discovery-script"),
        ("--host-discovery-script x --oversubscribe", "^--oversubscribe"),
        ("--outcome o --log-file ./o", "^--outcome and --log-file name the same file, '/.*/o': name another one"),
        ("--timeline o --outcome o", "^--outcome and --timeline name the same file"),
        ("--log-file hosts --hostfile hosts", "^--log-file and --hostfile name the same file"),
        ("--server-timeout 2h", "^--server-timeout is for a job that outlives its terminal: give --detach as well"),
        ("--timeline-mark-cycles", "^--timeline-mark-cycles marks a timeline, and this job records none: give"),
        ("--host-discovery-script ''", "^--host-discovery-script takes a command"),
    ],
)
def test_contradicting_options_are_refused_in_one_sentence(options: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        read_spec(["-np", "2", *shlex.split(options), "true"])
    assert caught.value.exit_code == 2
    assert len(caught.value.lines) == 1


def test_an_option_with_the_one_that_it_needs_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_spec(["-np", "2", "--detach", "--server-timeout", "2h", "true"]).limits.server_timeout_seconds == 7200.0
    for words in (["--timeline", "t.json"], ["-x", "HOROVOD_TIMELINE=t.json"]):
        assert read_spec(["-np", "2", *words, "--timeline-mark-cycles", "true"]).workers.timeline_mark_cycles
    monkeypatch.setenv("HOROVOD_TIMELINE", "t.json")
    assert read_spec(["-np", "2", "--timeline-mark-cycles", "true"]).workers.timeline_mark_cycles


def test_the_launcher_timeout_of_a_detached_job_gets_a_remark() -> None:
    words = ["-np", "2", "--launcher-timeout", "2h", "true"]
    assert read_spec(words).display.remarks == ()
    assert read_spec(["--detach", *words]).display.remarks == (
        "--launcher-timeout counts only until the workers start: with --detach --server-timeout is the limit then.",
    )
