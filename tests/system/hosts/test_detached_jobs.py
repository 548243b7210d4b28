"""A job that was started over ssh outlives the ssh session, and is found by the next one."""

import shlex
import sys

from tests.system.hosts.cluster import BuildCluster, Cluster
from tests.system.hosts.roles import find_workers
from tests.system.launcher import Running
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
