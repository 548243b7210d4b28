"""A host that cannot be used: one sentence with the remedy, exit code 125, and nothing is left on the good ones."""

import re
from dataclasses import replace

import pytest

from tests.lab.plan import HostPlan, SshdPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.launcher import Finished

CONNECT_SECONDS = 2  # by ConnectTimeout; the limit that counts where a host does not answer
JOB = ("-np", "2", "-H", "host1:1,host2:1")


def check_failure(finished: Finished, *patterns: str, code: int = 125) -> None:
    """The job has not started, and each line of what is said fits its pattern."""
    assert finished.returncode == code, finished.stderr
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert len(lines) == len(patterns), finished.stderr
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.parametrize(
    ("name", "remedy"), [("hots2", r"did you mean host2\?"), ("elsewhere", "check its spelling, or give its address.")]
)
def test_an_unknown_host_is_told_with_a_close_name_only_if_there_is_one(pair: Cluster, name: str, remedy: str) -> None:
    finished = pair("-np", "2", "-H", f"host1:1,{name}:1", "hostname")
    check_failure(finished, rf"hvdrun: the host '{name}' cannot be found \(name or service not known\): {remedy}")


def test_a_host_without_a_server_refuses(pair: Cluster) -> None:
    pair["host2"].sshd.stop()
    finished = pair(*JOB, "hostname")
    check_failure(
        finished,
        "hvdrun: the host 'host2' refused the ssh connection to host2 port 22: start an ssh server there, or give the "
        "port that it listens on with --ssh-port.",
    )


def test_a_host_that_does_not_answer_times_out(pair: Cluster) -> None:
    pair.configure_ssh(f"Host *\n  ConnectTimeout {CONNECT_SECONDS}\n")
    pair["host2"].network.cut()
    finished = pair(*JOB, "hostname")
    check_failure(finished, rf"hvdrun: the host 'host2' at host2 port 22 gave no answer within {CONNECT_SECONDS} s .*")
    assert finished.seconds < 2 * CONNECT_SECONDS + 2


def test_a_start_that_takes_too_long_names_the_hosts_that_are_missing(pair: Cluster) -> None:
    pair["host2"].network.cut()
    finished = pair(*JOB, "--start-timeout", "2s", "hostname")
    check_failure(finished, r"hvdrun: no agent runs on host2 after 2 s: .* with --start-timeout\.", code=124)


def test_a_start_that_takes_too_long_names_the_ranks_that_are_missing(pair: Cluster) -> None:
    pair.write(
        "join.py",
        "import os, time\n"
        "from rendezvous.bootstrap import Bootstrap\n"
        "from rendezvous.client import WorkerClient\n"
        "if os.environ['HOROVOD_RANK'] != '0':\n"
        "    time.sleep(600)\n"
        "WorkerClient(Bootstrap.read(os.environ)).join(0)\n",
    )
    job = ("-np", "3", "-H", "host1:1,host2:2")
    finished = pair(*job, "--no-prefork", "--grace", "1s", "--start-timeout", "2s", "python", "join.py")
    assert finished.returncode == 124
    assert (
        "hvdrun: 1 of 3 workers called hvd.init(), but within 2 s (--start-timeout) rank 1 (host2:0), "
        "rank 2 (host2:1) did not.\n"
    ) in finished.stderr


def test_a_host_that_lets_nobody_in(build: BuildCluster) -> None:
    cluster = build([HostPlan("host1"), HostPlan("host2", sshd=SshdPlan(accepts_key=False))])
    finished = cluster(*JOB, "hostname")
    check_failure(
        finished,
        r"hvdrun: the host 'host2' did not let 'root' log in \(the server allows publickey; keys tried: "
        r".*id_ed25519.*\): give a key with -i, or add yours to root's ~/\.ssh/authorized_keys there .*",
    )


def test_an_unknown_host_key_is_accepted_only_when_asked_for(pair: Cluster) -> None:
    pair.forget_host_keys()
    check_failure(
        pair("-np", "1", "-H", "host1:1", "hostname"),
        r"hvdrun: the key of the host 'host1' is unknown \(host1: ssh-ed25519 SHA256:.*\): .* with --ssh-accept-new\.",
    )
    accepted = pair("-np", "1", "-H", "host1:1", "--ssh-accept-new", "hostname")
    assert (accepted.returncode, accepted.stdout) == (0, "[0] host1\n"), accepted.stderr
    assert pair("-np", "1", "-H", "host1:1", "hostname").returncode == 0  # it was written down


def test_a_changed_host_key_is_never_accepted(pair: Cluster) -> None:
    known = pair.lab.launcher.home / ".ssh" / "known_hosts"
    first, second = (line.split() for line in known.read_text(encoding="utf-8").splitlines()[:2])
    known.write_text(f"{first[0]} {' '.join(second[1:])}\n{second[0]} {' '.join(second[1:])}\n", encoding="utf-8")
    finished = pair(*JOB, "--ssh-accept-new", "hostname")
    check_failure(
        finished,
        rf"hvdrun: the key of the host 'host1' is not the known one: .* line 1 of {known} .* \(ssh-keygen .*\)\.",
    )


def test_all_hosts_at_fault_are_listed(build: BuildCluster) -> None:
    plans = [HostPlan(f"host{n}") for n in (1, 2, 3, 4)]
    cluster = build([*plans[:3], replace(plans[3], sshd=SshdPlan(accepts_key=False))])
    cluster.configure_ssh(f"Host *\n  ConnectTimeout {CONNECT_SECONDS}\n")
    cluster["host2"].network.cut()
    cluster["host3"].sshd.stop()
    finished = cluster("-np", "5", "-H", "host1:1,host2:1,host3:1,host4:1,hots1:1", "hostname")
    check_failure(
        finished,
        "hvdrun: 4 of 5 hosts cannot be used:",
        "  the host 'host2' at host2 port 22 gave no answer .*",
        "  the host 'host3' refused the ssh connection .*",
        "  the host 'host4' did not let 'root' log in .*",
        "  the host 'hots1' cannot be found .*",
    )


def test_a_host_that_is_busy_is_tried_again(build: BuildCluster) -> None:
    busy = SshdPlan(settings={"MaxStartups": "1:50:2"})
    cluster = build([HostPlan("host1", sshd=busy), HostPlan("host2", sshd=busy)])
    for _ in range(2):
        finished = cluster(*JOB, "hostname")
        assert finished.returncode == 0, finished.stderr


def test_a_machine_that_has_two_names_in_the_job_is_told(pair: Cluster) -> None:
    finished = pair("-np", "3", "-H", "host1:1,HOST1:1,host2:1", "hostname")
    check_failure(finished, r"hvdrun: host1 and HOST1 are one machine, the one at 10\..*Name it once, .* -H host1:4\.")
