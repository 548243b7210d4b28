"""What a remote host must have and what its workers find; or one sentence with the remedy, and nothing is left."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from hvdrun.shim import path as horovod_path
from tests.lab.plan import HostPlan, SshdPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.launcher import Finished

JOB = ("-np", "2", "-H", "host1:1,host2:1")
REMOTE = ("-np", "1", "-H", "host1:1")


def write_python(cluster: Cluster, name: str, script: str) -> Path:
    """An interpreter that is a shell script."""
    return cluster.write(name, f"#!/bin/sh\n{script}\n", mode=0o755)


def check_failure(finished: Finished, *patterns: str) -> None:
    """The job has not started, and each line of what hvdrun prints fits its pattern."""
    assert finished.returncode == 125, finished.stderr
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


def test_a_program_that_is_missing_on_a_host_is_named_with_the_host(pair: Cluster) -> None:
    finished = pair(*JOB, "no-such-program")
    assert finished.returncode == 127
    assert finished.stderr.startswith("hvdrun: on the host 'host")
    assert "the command 'no-such-program' was not found: looked in " in finished.stderr


def test_remote_python_is_the_agent_s_and_the_workers_on_remote_hosts_only(pair: Cluster) -> None:
    python = write_python(pair, "python-there", f'echo "$*" >>{pair.directory}/uses; exec {sys.executable} "$@"')
    script = "import os; print(os.environ.get('HOROVOD_HOSTNAME'))"
    finished = pair("-np", "2", "-H", "localhost:1,host1:1", "--remote-python", python, "python", "-c", script)
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0@localhost] localhost", "[1@host1] host1"]
    uses = (pair.directory / "uses").read_text(encoding="utf-8").splitlines()
    assert uses == ["-P -m hvdrun.agent", f"-c {script}"]


def test_remote_workers_have_a_login_s_variables_the_short_list_and_what_is_forwarded(pair: Cluster) -> None:
    mine = {"COLOUR": "green  blue", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "OTHER": "mine", "SHAPE": "round"}
    around = {"PYTHONPATH": "/mine", "USER": "somebody"}
    show = 'printf "%s|" "$COLOUR" "$NCCL_DEBUG" "$NCCL_ALGO" "$SHAPE" "$OTHER" $HOME $USER $PATH $PYTHONPATH; echo'
    forwarded = ("-x", "COLOUR", "-x", "NCCL_*", "-x", "SHAPE=a=b ")
    finished = pair(*REMOTE, "--no-prefix", *forwarded, "sh", "-c", show, environment={**mine, **around})
    own = f"{pair['host1'].home}|root|{pair.lab.launcher.environment()['PATH']}"
    assert finished.stdout == f"green  blue|INFO|Ring|a=b ||{own}|{horovod_path.FOLDER}:/mine|\n"


def test_a_bare_python_is_the_launcher_s_own_and_forked_workers_have_a_login_s_variables_too(pair: Cluster) -> None:
    pair.write("show.py", "import os, sys; print(sys.executable, os.environ['HOME'], os.getcwd())")
    finished = pair(*REMOTE, "-v", "python", "show.py", forks=True)
    python = Path(sys.executable).with_name("python")
    assert finished.stdout == f"[0] {python} {pair['host1'].home} {pair.directory}\n"
    assert "host1:0 is process " in finished.stderr
    assert ", forked" in finished.stderr
