"""Agents that reach the launcher by one way alone find a server that was started again."""

import pytest

from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_workers, kill
from tests.system.hosts.test_detached_jobs import detach
from tests.waiting import wait_until

TAKEN_OVER = "another one goes on"
BEHIND_A_FIREWALL = HostPlan("launcher", is_closed=True, sshd=None)


def read_log(cluster: Cluster) -> str:
    """The log of the only job."""
    state = cluster.lab.launcher.home / ".local" / "state" / "hvdrun"
    return "".join(path.read_text(encoding="utf-8") for path in sorted(state.glob("*/log.*")))


def kill_server(cluster: Cluster) -> None:
    """Kill -9 of the server, and wait until the next one has taken over."""
    known = read_log(cluster).count(TAKEN_OVER)
    _, server = (process for process in cluster.lab.launcher.processes() if "--detach" in process.command)
    kill(server)
    wait_until(lambda: read_log(cluster).count(TAKEN_OVER) > known, "another server")


def wait_end(cluster: Cluster, job: str) -> tuple[int | None, str, str]:
    """Let a job of `detach` train to its end; its exit code, output and messages."""
    cluster.write("go", "")
    ended = cluster.start_on(cluster.lab.launcher, ["hvdrun", "wait", job]).wait()
    logs = cluster.start_on(cluster.lab.launcher, ["hvdrun", "logs", job]).wait()
    return ended.returncode, logs.stdout, logs.stderr


@pytest.mark.nightly
def test_agents_behind_the_tunnel_of_ssh_find_a_server_that_was_started_again(build: BuildCluster) -> None:
    cluster = build(2, launcher=BEHIND_A_FIREWALL)
    job = detach(cluster, "--lease", "4s")
    workers = {host.name: [process.pid for process in find_workers(host, "train.py")] for host in cluster.lab}
    for _ in range(2):
        kill_server(cluster)
    assert workers == {host.name: [process.pid for process in find_workers(host, "train.py")] for host in cluster.lab}
    code, output, said = wait_end(cluster, job)
    assert (code, output.count("step ")) == (5, 40)
    assert said.count(TAKEN_OVER) == 2
    assert "lost" not in said
    assert not cluster.settle(with_sshd=False)
    cluster.end_sessions()
