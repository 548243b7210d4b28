"""What a remote host must have, and what its workers find: the directory, Python, hvdrun, and their environment."""

import sys
from pathlib import Path

from hvdrun import __version__, horovod_path
from tests.system.hosts.cluster import Cluster

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
    assert (finished.returncode, finished.stdout) == (125, "")
    assert finished.stderr.splitlines() == [
        "hvdrun: 2 of 2 hosts cannot be used:",
        *(
            f"  the host '{host}' has hvdrun {OTHER_VERSION}, but this is hvdrun {__version__}: install the same there "
            f"with  {python} -m pip install hvdrun=={__version__}"
            for host in ("host1", "host2")
        ),
    ]


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


def test_variables_reach_remote_workers_by_name_with_a_value_and_by_a_pattern_and_no_others(pair: Cluster) -> None:
    mine = {"COLOUR": "green  blue", "NCCL_DEBUG": "INFO", "NCCL_ALGO": "Ring", "OTHER": "mine", "SHAPE": "round"}
    show = 'printf \'%s|\' "$COLOUR" "$NCCL_DEBUG" "$NCCL_ALGO" "$SHAPE" "$OTHER"; echo'
    finished = pair(*JOB, "-x", "COLOUR", "-x", "NCCL_*", "-x", "SHAPE=a=b ", "sh", "-c", show, environment=mine)
    assert sorted(finished.stdout.splitlines()) == [f"[{n}@host{n + 1}] green  blue|INFO|Ring|a=b ||" for n in range(2)]


def test_a_login_s_own_variables_stay_and_the_short_list_goes_along(pair: Cluster) -> None:
    show = "echo $HOME $USER; echo $PATH; echo $PYTHONPATH"
    finished = pair(*REMOTE, "--no-prefix", "sh", "-c", show, environment={"PYTHONPATH": "/mine", "USER": "somebody"})
    path = pair.lab.launcher.environment()["PATH"]
    assert finished.stdout == f"{pair['host1'].home} root\n{path}\n{horovod_path.FOLDER}:/mine\n"


def test_a_bare_python_is_the_launcher_s_own_and_forked_workers_have_a_login_s_variables_too(pair: Cluster) -> None:
    pair.write("tell.py", "import os, sys; print(sys.executable, os.environ['HOME'], os.getcwd())")
    finished = pair(*REMOTE, "-v", "python", "tell.py", forks=True)
    python = Path(sys.executable).with_name("python")
    assert finished.stdout == f"[0] {python} {pair['host1'].home} {pair.directory}\n"
    assert "host1:0 is process " in finished.stderr
    assert ", forked" in finished.stderr
