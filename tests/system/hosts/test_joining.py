"""Agents that come by themselves from other hosts: behind a NAT, under a name that is taken, cut off and back."""

from pathlib import Path

import pytest

from tests.deploy.samples import PARTIAL, check_sample
from tests.house.sources import ROOT
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_workers
from tests.system.launcher import Running

LINE = r"on each host run: hvdrun (agent --join \S+ --token-file \S+)$"
ELASTIC = ("-np", "2", "--min-np", "1", "--lease", "2s", "--launcher-timeout", "30s", "--blacklist-cooldown-range")
JOINS = """
import os
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient
WorkerClient(Bootstrap.read(os.environ)).join(0)
print("joined", flush=True)
"""
STAY = "echo at $HVD_ADDRESS; while [ ! -e go ]; do sleep 0.05; done"
SECONDS = 60.0
# In the place of PBS' own: what it starts has no input, and its output goes elsewhere.
PBS_TMRSH = """#!/bin/sh
host=$1; shift
[ "$host" = "$(hostname)" ] || set -- ssh -n "$host" "$*"
"$@" < /dev/null >> output 2>&1
"""


def join(cluster: Cluster, host: str, line: str, name: str = "") -> Running:
    """Run the line that hvdrun has printed on a host."""
    words = ["hvdrun", *line.split(), *(("--name", name) if name else ())]
    return Running(cluster[host].start(words, directory=cluster.directory))


@pytest.mark.nightly
def test_hosts_that_accept_no_connection_from_outside_train(pair: Cluster) -> None:
    for name in ("host1", "host2"):
        pair[name].network.close_door(pair.lab.launcher.network)
    running = pair.start("-np", "2", "--wait-for-agents", "sh", "-c", "echo at $HVD_ADDRESS")
    line = running.stderr.wait_for(LINE, SECONDS)[1]
    assert pair.lab.launcher.network.address() in line
    agents = [join(pair, name, line) for name in ("host2", "host1")]
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    addresses = [pair[name].network.address() for name in ("host1", "host2")]
    assert sorted(finished.stdout.splitlines()) == [f"[0@host1] at {addresses[0]}", f"[1@host2] at {addresses[1]}"]
    assert [agent.wait().returncode for agent in agents] == [0, 0]


@pytest.mark.nightly
def test_one_open_port_of_the_launcher_is_enough(pair: Cluster) -> None:
    pair.lab.launcher.network.close_door(but=29400)
    pair.write("join.py", JOINS)
    place = ("--bind", f"{pair.lab.launcher.network.address()}:29400")
    running = pair.start("-v", "-np", "2", "--wait-for-agents", *place, "python", "join.py")
    line = running.stderr.wait_for(LINE, SECONDS)[1]
    agents = [join(pair, name, line) for name in ("host1", "host2")]
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0@host1] joined", "[1@host2] joined"]
    assert finished.stderr.count("; it reaches the rendezvous through the port of --bind\n") == 2
    assert [agent.wait().returncode for agent in agents] == [0, 0]


@pytest.mark.nightly
def test_a_host_that_is_cut_off_is_replaced_under_its_name_and_refused_when_it_is_back(build: BuildCluster) -> None:
    cluster = build(3)
    running = cluster.start(*ELASTIC, "1", "1", "--wait-for-agents", "sh", "-c", STAY)
    line = running.stderr.wait_for(LINE, SECONDS)[1]
    stays, goes = join(cluster, "host1", line), join(cluster, "host2", line)
    running.stdout.wait_for(r"@host2\] at", SECONDS)
    cluster["host2"].network.cut()
    comes = join(cluster, "host3", line, "host2")
    running.stderr.wait_for(r"^hvdrun: a new worker is started in slot host2:0\.$", SECONDS)
    comes.stderr.wait_for(r"^hvdrun: joined the job at \S+ as host2 with 1 slot\.$", SECONDS)
    running.stdout.wait_for(rf"@host2\] at {cluster['host3'].network.address()}$", SECONDS)
    assert goes.is_running
    cluster["host2"].network.mend()
    assert goes.wait().returncode == 75
    assert not find_workers(cluster["host2"], STAY)
    cluster.write("go", "")
    finished = running.wait()
    assert finished.returncode == 0, finished.stderr
    assert [agent.wait().returncode for agent in (stays, comes)] == [0, 0]


@pytest.mark.nightly
@pytest.mark.sample
def test_a_job_of_pbs_trains_on_its_hosts(pair: Cluster, *, rewrite: bool) -> None:
    launcher = pair.lab.launcher
    pair.write("pbs_tmrsh", PBS_TMRSH, mode=0o755)
    pair.write("nodes", f"{launcher.name}\nhost1\nhost1\n")
    pair.write("train.py", "import os; print('rank', os.environ['RANK'], 'on', os.environ['HOROVOD_HOSTNAME'])\n")
    script = (ROOT / "deploy" / "pbs" / "train.pbs").read_text(encoding="utf-8")
    pair.write("train.pbs", script.replace("hvdrun -np", "hvdrun --no-prefork -np"))
    variables = {
        "PATH": f"{pair.directory}:{launcher.environment()['PATH']}",
        "PBS_JOBID": "7.server",
        "PBS_NODEFILE": str(pair.directory / "nodes"),
        "PBS_O_WORKDIR": str(pair.directory),
    }
    job = pair.start_on(launcher, ["bash", pair.directory / "train.pbs"], environment=variables, directory=Path("/"))
    finished = job.wait()
    assert finished.returncode == 0, finished.stderr + (pair.directory / "output").read_text(encoding="utf-8")
    assert sorted(finished.stdout.splitlines()) == [
        "[0@host1] rank 0 on host1", "[1@host1] rank 1 on host1", f"[2@{launcher.name}] rank 2 on {launcher.name}",
    ]  # fmt: skip
    assert list(pair.directory.glob("*.token*")) == []
    names = {str(pair.directory): "/work", f"{launcher.name}": "node2", "host1": "node1"}
    check_sample("pbs", finished.stderr + finished.stdout, names, without=PARTIAL, rewrite=rewrite)
