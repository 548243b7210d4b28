"""What a remote host must have and what its workers find; or one sentence with the remedy, and nothing is left."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from hvdrun import __version__, horovod_path
from tests.lab.plan import HostPlan, SshdPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.launcher import Finished

JOB = ("-np", "2", "-H", "host1:1,host2:1")
REMOTE = ("-np", "1", "-H", "host1:1")
FOLDER = Path("/tmp/data")  # noqa: S108 - each host's own
OTHER_VERSION = "0.0.0.dev7"
# hvdrun as it is, but for what it says of its version.
CHANGED_VERSION = f"""
import runpy, sys
import hvdrun
hvdrun.__version__ = "{OTHER_VERSION}"
sys.argv = [sys.argv[-1]]
runpy.run_module("hvdrun.agent", run_name="__main__", alter_sys=True)
"""


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


def test_an_unknown_host_key_is_accepted_only_when_asked_for(pair: Cluster) -> None:
    (pair.lab.launcher.home / ".ssh" / "known_hosts").write_text("", encoding="utf-8")
    check_failure(
        pair(*REMOTE, "hostname"),
        r"hvdrun: the key of the host 'host1' is unknown \(host1: ssh-ed25519 SHA256:.*\): .* with --ssh-accept-new\.",
    )
    accepted = pair(*REMOTE, "--ssh-accept-new", "hostname")
    assert (accepted.returncode, accepted.stdout) == (0, "[0] host1\n"), accepted.stderr


def test_a_directory_that_is_missing_on_a_host_is_named(pair: Cluster) -> None:
    hosts = {"localhost": pair.lab.launcher, "host1": pair["host1"], "host2": pair["host2"]}
    folders = {name: host.locate(FOLDER) for name, host in hosts.items()}
    job = ("-np", "3", "-H", "localhost:1,host1:1,host2:1", "--wdir", FOLDER, "pwd")
    for name in ("localhost", "host2"):
        folders[name].mkdir()
    finished = pair(*job)
    assert (finished.returncode, finished.stdout) == (125, "")
    assert finished.stderr == (
        f"hvdrun: the directory '{FOLDER}' does not exist on the host 'host1': create it there, or name another with "
        "--wdir.\n"
    )
    folders["host1"].mkdir()
    assert sorted(pair(*job).stdout.splitlines()) == [f"[{rank}@{name}] {FOLDER}" for rank, name in enumerate(hosts)]
    for folder in folders.values():
        folder.rmdir()


def test_a_program_that_is_missing_on_a_host_is_named_with_the_host(pair: Cluster) -> None:
    finished = pair(*JOB, "no-such-program")
    assert finished.returncode == 127
    assert finished.stderr.startswith("hvdrun: on the host 'host")
    assert "the command 'no-such-program' was not found: looked in " in finished.stderr


def test_hvdrun_has_another_version_there(pair: Cluster) -> None:
    pair.write("agent.py", CHANGED_VERSION)
    python = write_python(pair, "python-there", f'exec {sys.executable} {pair.directory}/agent.py "$@"')
    finished = pair(*JOB, "--remote-python", python, "hostname")
    versions = f"has hvdrun {OTHER_VERSION}, but this is hvdrun {__version__}: install the same there"
    remedies = [
        re.escape(f"  the host '{host}' {versions} with  {python} -m pip install hvdrun=={__version__}")
        for host in ("host1", "host2")
    ]
    check_failure(finished, "hvdrun: 2 of 2 hosts cannot be used:", *remedies)


def test_remote_python_is_the_agent_s_and_the_workers_on_remote_hosts_only(pair: Cluster) -> None:
    python = write_python(pair, "python-there", f'echo "$*" >>{pair.directory}/uses; exec {sys.executable} "$@"')
    script = "import os; print(os.environ.get('HOROVOD_HOSTNAME'))"
    finished = pair("-np", "2", "-H", "localhost:1,host1:1", "--remote-python", python, "python", "-c", script)
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0@localhost] localhost", "[1@host1] host1"]
    uses = (pair.directory / "uses").read_text(encoding="utf-8").splitlines()
    assert uses == ["-P -m hvdrun.agent", f"-c {script}"]


def test_a_prefix_prepares_the_host_and_may_be_noisy(pair: Cluster) -> None:
    pair.write(
        "env.sh",
        'echo loading; echo "loading: 100%" >&2\nhead -c 200000 /dev/zero\nexport FROM_PREFIX="on $(hostname)"\n',
    )
    finished = pair(*JOB, "--remote-prefix", f"source '{pair.directory}/env.sh'", "sh", "-c", "echo $FROM_PREFIX")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert sorted(finished.stdout.splitlines()) == ["[0@host1] on host1", "[1@host2] on host2"]


def test_remote_workers_have_a_login_s_variables_the_short_list_and_what_is_forwarded(pair: Cluster) -> None:
    mine = {"COLOUR": "green  blue", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "OTHER": "mine", "SHAPE": "round"}
    around = {"PYTHONPATH": "/mine", "USER": "somebody"}
    show = 'printf "%s|" "$COLOUR" "$NCCL_DEBUG" "$NCCL_ALGO" "$SHAPE" "$OTHER" $HOME $USER $PATH $PYTHONPATH; echo'
    forwarded = ("-x", "COLOUR", "-x", "NCCL_*", "-x", "SHAPE=a=b ")
    finished = pair(*REMOTE, "--no-prefix", *forwarded, "sh", "-c", show, environment={**mine, **around})
    own = f"{pair['host1'].home}|root|{pair.lab.launcher.environment()['PATH']}"
    assert finished.stdout == f"green  blue|INFO|Ring|a=b ||{own}|{horovod_path.FOLDER}:/mine|\n"


def test_a_bare_python_is_the_launcher_s_own_and_forked_workers_have_a_login_s_variables_too(pair: Cluster) -> None:
    pair.write("tell.py", "import os, sys; print(sys.executable, os.environ['HOME'], os.getcwd())")
    finished = pair(*REMOTE, "-v", "python", "tell.py", forks=True)
    python = Path(sys.executable).with_name("python")
    assert finished.stdout == f"[0] {python} {pair['host1'].home} {pair.directory}\n"
    assert "host1:0 is process " in finished.stderr
    assert ", forked" in finished.stderr
