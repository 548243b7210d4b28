"""A host that cannot be used: one sentence with the remedy, exit code 125, and nothing is left on the good ones."""

import re
from dataclasses import replace

import pytest

from tests.lab.plan import HostPlan, SshdPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.launcher import Finished

JOB = ("-np", "2", "-H", "host1:1,host2:1")


def check_failure(finished: Finished, *patterns: str, code: int = 125) -> None:
    """The job has not started, and each line of what hvdrun prints fits its pattern."""
    assert finished.returncode == code, finished.stderr
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert len(lines) == len(patterns), finished.stderr
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


def test_all_hosts_at_fault_are_listed_each_with_its_reason(build: BuildCluster) -> None:
    plans = [HostPlan(f"host{n}") for n in (1, 2, 3, 4)]
    cluster = build([*plans[:3], replace(plans[3], sshd=SshdPlan(accepts_key=False))])
    cluster.configure_ssh("Host host2\n  ConnectTimeout 2\n")
    cluster["host2"].network.cut()
    cluster["host3"].sshd.stop()
    check_failure(
        cluster("-np", "5", "-H", "host1:1,host2:1,host3:1,host4:1,hots1:1", "hostname"),
        "hvdrun: 4 of 5 hosts cannot be used:",
        r"  the host 'host2' at host2 port 22 gave no answer within 2 s .*",
        r"  the host 'host3' refused the ssh connection to host3 port 22: .* with --ssh-port\.",
        r"  the host 'host4' did not let 'root' log in \(the server allows publickey; keys tried: .*id_ed25519.*\): .*",
        r"  the host 'hots1' cannot be found \(name or service not known\): did you mean host1\?",
    )


def test_an_unknown_host_key_is_accepted_only_when_asked_for(pair: Cluster) -> None:
    (pair.lab.launcher.home / ".ssh" / "known_hosts").write_text("", encoding="utf-8")
    check_failure(
        pair("-np", "1", "-H", "host1:1", "hostname"),
        r"hvdrun: the key of the host 'host1' is unknown \(host1: ssh-ed25519 SHA256:.*\): .* with --ssh-accept-new\.",
    )
    accepted = pair("-np", "1", "-H", "host1:1", "--ssh-accept-new", "hostname")
    assert (accepted.returncode, accepted.stdout) == (0, "[0] host1\n"), accepted.stderr


@pytest.mark.nightly
def test_a_start_that_takes_too_long_names_the_hosts_that_are_missing(pair: Cluster) -> None:
    pair["host2"].network.cut()
    finished = pair(*JOB, "--start-timeout", "2s", "hostname")
    check_failure(finished, r"hvdrun: no agent runs on host2 after 2 s: .* with --start-timeout\.", code=124)


@pytest.mark.nightly
def test_a_machine_that_has_two_names_in_the_job_is_named_with_both(pair: Cluster) -> None:
    finished = pair("-np", "3", "-H", "host1:1,HOST1:1,host2:1", "hostname")
    check_failure(finished, r"hvdrun: host1 and HOST1 are one machine, the one at 10\..*Name it once, .* -H host1:4\.")
