"""Agents that reach the launcher by one way alone find a server that was started again."""

from datetime import UTC, datetime

import pytest

from hvdrun.joining.token import Token
from tests.lab.plan import HostPlan
from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_launchers, find_workers, kill
from tests.system.hosts.test_detached_jobs import ELASTIC, HALVES, detach, find_running
from tests.system.launcher import Running
from tests.waiting import wait_until

PORT = 29400
LIFETIME = "30s"
TAKEN_OVER = "another one goes on"
BEHIND_A_FIREWALL = HostPlan("launcher", is_closed=True, sshd=None)


def read_log(cluster: Cluster) -> str:
    """The log of the only job."""
    state = cluster.lab.launcher.home / ".local" / "state" / "hvdrun"
    return "".join(path.read_text(encoding="utf-8") for path in sorted(state.glob("*/log.*")))


def kill_server(cluster: Cluster) -> None:
    """Kill -9 of the server, and wait until the next one has taken over."""
    known = read_log(cluster).count(TAKEN_OVER)
    _, server = find_launchers(cluster.lab.launcher)
    kill(server)
    wait_until(lambda: read_log(cluster).count(TAKEN_OVER) > known, "another server")


def wait_end(cluster: Cluster, job: str) -> tuple[int | None, str, str]:
    """Let a job of `detach` come to its end; its exit code, output and messages."""
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
    for host in cluster.lab:
        host.sshd.kill_sessions()
    assert workers == {host.name: [process.pid for process in find_workers(host, "train.py")] for host in cluster.lab}
    code, output, said = wait_end(cluster, job)
    assert (code, output.count("step ")) == (5, 40)
    assert said.count(TAKEN_OVER) == 2
    assert "lost" not in said
    assert not cluster.settle(with_sshd=False)
    cluster.end_sessions()


@pytest.mark.nightly
def test_a_key_that_an_ssh_agent_has_alone_is_said_at_the_start(build: BuildCluster) -> None:
    cluster = build(2, launcher=BEHIND_A_FIREWALL)
    launcher = cluster.lab.launcher
    key, place = launcher.home / ".ssh" / "id_ed25519", launcher.home / "agent"
    environment = {"SSH_AUTH_SOCK": str(place)}
    agent = cluster.start_on(launcher, ["ssh-agent", "-D", "-a", place])
    wait_until(place.exists, "the ssh agent")
    assert cluster.start_on(launcher, ["ssh-add", key], environment=environment).wait().returncode == 0
    key.unlink()
    cluster.write("train.py", HALVES)
    words = ("--detach", "--lease", "3s", "--server-timeout", "3s", "-np", "2", "-H", "host1:1,host2:1")
    started = cluster(*words, "python", "train.py", environment=environment)
    assert started.stderr.startswith("hvdrun: the SSH agent alone has the key of host1 and 1 more: ")
    wait_until(lambda: (cluster.directory / "half.0").exists() and (cluster.directory / "half.1").exists())
    agent.close()
    kill_server(cluster)
    ended = cluster.start_on(launcher, ["hvdrun", "wait", started.stdout.strip()]).wait()
    assert ended.returncode == 75
    for name in ("host1", "host2"):
        assert f"hvdrun cannot reach {name} again, and workers that run there train on until " in read_log(cluster)
    cluster.write("go", "")
    wait_until(lambda: all((cluster.directory / f"end.{rank}").exists() for rank in range(2)), "both to train on")
    assert not cluster.settle()


def start_joined(cluster: Cluster, script: str, *options: str) -> tuple[Running, list[str]]:
    """A detached job whose agents reach one port alone; the words of an agent's command."""
    cluster.lab.launcher.network.close_door(but=PORT)
    cluster.write("train.py", script)
    place = f"{cluster.lab.launcher.network.address()}:{PORT}"
    token = cluster.directory / "job.token"
    made = cluster.start_on(cluster.lab.launcher, ["hvdrun", "token", token, "--lifetime", LIFETIME]).wait()
    assert made.returncode == 0, made.stderr
    words = ("--detach", "--lease", "20s", "--wait-for-agents", "--bind", place, "--token-file", token)
    starting = cluster.start(*words, *options, "python", "train.py")
    return starting, ["hvdrun", "agent", "--join", place, "--token-file", str(token)]


def join(cluster: Cluster, host: str, command: list[str]) -> Running:
    """Start an agent on a host."""
    return cluster.start_on(cluster[host], command)


@pytest.mark.nightly
def test_agents_that_have_joined_find_a_server_without_a_token_that_is_valid(build: BuildCluster) -> None:
    cluster = build(2)
    starting, command = start_joined(cluster, HALVES, "-np", "2")
    agents = [join(cluster, name, command) for name in ("host1", "host2")]
    started = starting.wait()
    assert started.returncode == 0, started.stderr
    wait_until(lambda: (cluster.directory / "half.0").exists() and (cluster.directory / "half.1").exists())
    expires = Token.read(cluster.directory / "job.token").expires
    for path in cluster.directory.glob("job.token*"):
        path.unlink()
    wait_until(lambda: datetime.now(UTC) > expires, "the token to expire")
    for _ in range(2):
        kill_server(cluster)
    code, output, said = wait_end(cluster, started.stdout.strip())
    assert (code, output.count("step ")) == (5, 40), said
    assert said.count(TAKEN_OVER) == 2
    assert "lost" not in said
    assert [agent.wait().returncode for agent in agents] == [5, 5]


@pytest.mark.nightly
def test_an_agent_joins_a_server_that_was_started_again(build: BuildCluster) -> None:
    cluster = build(2)
    starting, command = start_joined(
        cluster, ELASTIC.replace("sys.exit(5)", ""), "-np", "1", "--min-np", "1", "--max-np", "2"
    )
    agents = [join(cluster, "host1", command)]
    wait_until(lambda: len(find_running(cluster, 1)) == 1, "the first to train")
    started = starting.wait()
    assert started.returncode == 0, started.stderr
    kill_server(cluster)
    agents.append(join(cluster, "host2", command))
    wait_until(lambda: len(find_running(cluster, 2)) == 2, "both to train")
    assert find_running(cluster, 2)[0] == find_running(cluster, 1)[0]
    kill_server(cluster)
    code, output, said = wait_end(cluster, started.stdout.strip())
    assert (code, output.count("over ")) == (0, 2), said
    assert "lost" not in said
    assert [agent.wait().returncode for agent in agents] == [0, 0]
