"""A job outlives the ssh session that it was started in, those that it has started, and its launcher."""

import shlex
import sys

from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_launchers, find_workers, kill
from tests.system.launcher import Running
from tests.system.scripts import WAIT_FOR
from tests.waiting import wait_until

JOB = "import time\ntime.sleep(600)\n"


def log_in(cluster: Cluster, *commands: list[str]) -> Running:
    """Run commands on host1, each hvdrun's, in an ssh session with a terminal."""
    lines = [shlex.join(["cd", str(cluster.directory)])]
    lines += [shlex.join([sys.executable, "-m", "hvdrun", *words]) for words in commands]
    return cluster.start_on(cluster.lab.launcher, ["ssh", "-tt", "host1", "; ".join(lines)])


def test_a_detached_job_outlives_its_ssh_session(build: BuildCluster) -> None:
    cluster = build(1)
    host = cluster["host1"]
    cluster.write("job.py", JOB)
    words = ["--no-prefork", "--detach", "-np", "2", "python", "job.py"]
    session = log_in(cluster, words, ["attach"])
    session.stdout.wait_for("the job goes on: hvdrun attach ", 60)
    wait_until(lambda: len(find_workers(host, "job.py")) == 2, "both workers to run")
    host.sshd.kill_sessions()
    session.wait()
    assert len(find_workers(host, "job.py")) == 2
    later = log_in(cluster, ["ps"], ["stop"], ["wait", "last"]).wait()
    assert later.returncode == 143
    assert "  running  " in later.stdout
    assert not cluster.settle(with_sshd=False)
    cluster.end_sessions()


HALVES = f"""{WAIT_FOR}
rank = int(os.environ["RANK"])
for step in range(20):
    if step == 5:
        open(f"half.{{rank}}", "w")
        wait_for("go")
    print("step", step, flush=True)
open(f"end.{{rank}}", "w")
wait_for(f"end.{{1 - rank}}")  # the end of one ends the other
sys.exit(5)
"""


def detach(cluster: Cluster, *options: str) -> str:
    """A job on two hosts that comes to its half, and waits for the file `go`; its name."""
    cluster.write("train.py", HALVES)
    started = cluster("--detach", *options, "-np", "2", "-H", "host1:1,host2:1", "python", "train.py")
    assert (started.returncode, started.stderr) == (0, "")
    wait_until(lambda: (cluster.directory / "half.0").exists() and (cluster.directory / "half.1").exists())
    return started.stdout.strip()


def test_workers_on_other_hosts_continue_when_the_launcher_is_killed(build: BuildCluster) -> None:
    cluster = build(2)
    job = detach(cluster, "--lease", "2s", "--server-timeout", "2s")
    workers = {host.name: [process.pid for process in find_workers(host, "train.py")] for host in cluster.lab}
    kill(*find_launchers(cluster.lab.launcher))
    wait_until(lambda: not find_launchers(cluster.lab.launcher))
    assert workers == {host.name: [process.pid for process in find_workers(host, "train.py")] for host in cluster.lab}
    removed = cluster.start_on(cluster.lab.launcher, ["hvdrun", "rm", job]).wait()
    assert (removed.returncode, "may still run on host1, host2: go on with them" in removed.stderr) == (1, True)
    cluster.write("go", "")
    wait_until(
        lambda: all((cluster.directory / f"end.{rank}").exists() for rank in range(2)), "both to come to their end"
    )
    assert not cluster.settle()


def test_ssh_connections_that_end_do_not_end_the_job(build: BuildCluster) -> None:
    cluster = build(2)
    job = detach(cluster)
    for host in cluster.lab:
        host.sshd.kill_sessions()
    cluster.write("go", "")
    ended = cluster.start_on(cluster.lab.launcher, ["hvdrun", "wait", job]).wait()
    assert ended.returncode == 5
    logs = cluster.start_on(cluster.lab.launcher, ["hvdrun", "logs", job]).wait().stdout
    assert logs.count("step ") == 40
    assert not cluster.settle(with_sshd=False)
    cluster.end_sessions()


ELASTIC = """
import os, sys, time
import torch
import worker_runtime.torch as hvd
hvd.init()
state = hvd.elastic.TorchState(step=0)
@hvd.elastic.run
def train(state):
    while not hvd.broadcast_object(os.path.exists("go"), name="go"):
        hvd.allreduce(torch.ones(1), name="step")
        state.step += 1
        state.commit()
        open(f"running.{hvd.rank()}.{hvd.size()}.{os.getpid()}", "w")
        time.sleep(0.02)
train(state)
print("over", hvd.rank(), flush=True)
sys.exit(5)
"""


def find_running(cluster: Cluster, size: int) -> dict[int, int]:
    """The pids of the workers that train in a generation of this size, by rank."""
    names = [path.name.split(".")[1:] for path in cluster.directory.glob(f"running.*.{size}.*")]
    return {int(rank): int(pid) for rank, _, pid in names}


def test_another_server_starts_workers_on_other_hosts(build: BuildCluster) -> None:
    cluster = build(2)
    cluster.write("train.py", ELASTIC)
    words = ["--detach", "--lease", "2s", "-np", "2", "--min-np", "1", "-H", "host1:1,host2:1", "python", "train.py"]
    started = cluster(*words)
    assert (started.returncode, started.stderr) == (0, "")
    wait_until(lambda: len(find_running(cluster, 2)) == 2, "both to train")
    _, server = find_launchers(cluster.lab.launcher)
    (lost,), (kept,) = (find_workers(cluster[name], "train.py") for name in ("host2", "host1"))
    kill(server)
    kill(lost)
    for path in cluster.directory.glob("running.*"):
        path.unlink(missing_ok=True)
    wait_until(lambda: len(find_running(cluster, 2)) == 2, "another worker to train with the first")
    assert [process.pid for process in find_workers(cluster["host1"], "train.py")] == [kept.pid]
    cluster.write("go", "")
    ended = cluster.start_on(cluster.lab.launcher, ["hvdrun", "wait", started.stdout.strip()]).wait()
    assert ended.returncode == 5
    assert not cluster.settle(with_sshd=False)
    cluster.end_sessions()
