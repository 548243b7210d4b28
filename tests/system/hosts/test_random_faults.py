"""A random fault on a random host at a random moment of a job: when the lease has run out, nothing is left anywhere.

A host of a detached job that cannot reach its launcher any more waits for the server timeout instead, and its workers
have a minute to save then. No other fault lets it wait for an hour.

One seeded run belongs to `make test`, nine more to `make nightly`; `make soak` makes 100 (HVDRUN_SOAK_RUNS). As many
run detached, all in the night.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterable

import pytest

from hvdrun.agent.launcher_timeout import SAVE_SECONDS
from tests.lab.host import Host
from tests.lab.network import Direction
from tests.lab.process import HostProcess
from tests.system.hosts.cluster import LEFT_SECONDS, BuildCluster, Cluster
from tests.system.hosts.roles import find_agents, find_launchers, find_watchdogs, find_workers
from tests.system.launcher import Running

RUNS = range(int(os.environ.get("HVDRUN_SOAK_RUNS", "10")))
DETACHED_SEEDS = [pytest.param(seed, marks=pytest.mark.nightly) for seed in RUNS]
SEEDS = [*RUNS[:1], *(pytest.param(seed, marks=pytest.mark.nightly) for seed in RUNS[1:])]
LEASE_SECONDS = 2.0
# Before the agents receive the job there is no lease; each step of the start has a limit of its own.
LIMIT_SECONDS = 90.0
HOSTS = ("host1", "host2", "host3")
# The job has succeeded; a worker has lost its peers; a host was lost; the start timed out, or failed; a worker was
# killed; the user pressed Ctrl-C, perhaps before hvdrun handled signals; hvdrun was killed.
ENDINGS = {0, 1, 75, 124, 125, 128 + signal.SIGKILL, 128 + signal.SIGINT, -signal.SIGINT, -signal.SIGKILL}
# The codes of a request to stop, and of a launcher that was killed, or of a job that had not begun.
DETACHED_ENDINGS = {128 + signal.SIGTERM, 69}
# About two seconds: workers with a child each, in the one case in and out of collectives all the time.
TRAINS = """
import subprocess, sys, time
subprocess.Popen(["sh", "-c", "sleep 600; true"])
subprocess.Popen(["sh", "-c", "sleep 601; true"], start_new_session=True)
ends = time.monotonic() + 2
if sys.argv[1] == "train":
    import torch
    import worker_runtime.torch as hvd
    hvd.init()
    for step in range(300):
        hvd.allreduce(torch.ones(1000), name="gradient")
time.sleep(max(0, ends - time.monotonic()))
"""


def kill_one(processes: Iterable[HostProcess], chance: random.Random) -> None:
    """`kill -9` one of them, if there is one yet, or still."""
    for process in chance.sample(list(processes), k=1) if processes else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def freeze(host: Host) -> None:
    """Freeze the host until its lease has ended, and thaw it."""
    host.freeze()
    time.sleep(LEASE_SECONDS + 1)  # the lease ends within this time
    host.thaw()


FAULTS: dict[str, Callable[[Host, random.Random], None]] = {
    "kill the agent": lambda host, chance: kill_one(find_agents(host), chance),
    "kill the watchdog": lambda host, chance: kill_one(find_watchdogs(host), chance),
    "kill a worker": lambda host, chance: kill_one(find_workers(host, "job.py"), chance),
    "kill sshd's sessions": lambda host, _: host.sshd.kill_sessions(),
    "kill sshd": lambda host, _: host.sshd.kill(),
    "destroy": lambda host, _: host.destroy(),
    "cut": lambda host, _: host.network.cut(),
    "cut what comes in": lambda host, _: host.network.cut(Direction.IN),
    "cut what goes out": lambda host, _: host.network.cut(Direction.OUT),
    "unplug": lambda host, _: host.network.unplug(),
    "freeze": lambda host, _: freeze(host),
}
LAUNCHER_FAULTS: dict[str, Callable[[Cluster, Running], None]] = {
    "kill hvdrun": lambda _, running: running.send(signal.SIGKILL),
    "destroy the launcher": lambda cluster, _: cluster.lab.launcher.destroy(),
    "cut the launcher": lambda cluster, _: cluster.lab.launcher.network.cut(),
    "press Ctrl-C": lambda _, running: running.send_to_terminal(signal.SIGINT),
}

PARTING = {"cut", "cut what comes in", "cut what goes out", "unplug", *LAUNCHER_FAULTS} - {"press Ctrl-C"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_fault_leaves_no_process_and_no_file(build: BuildCluster, seed: int) -> None:
    make_fault(build, seed)


@pytest.mark.parametrize("seed", DETACHED_SEEDS)
def test_a_random_fault_of_a_detached_job_leaves_no_process_and_no_file(build: BuildCluster, seed: int) -> None:
    make_fault(build, seed, "--detach")


def kill_launcher(cluster: Cluster) -> None:
    """`kill -9` of all processes of hvdrun on its machine, of a detached job."""
    for process in find_launchers(cluster.lab.launcher):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def wait_detached(cluster: Cluster, limit_seconds: float) -> int | None:
    """How a detached job ended, as `hvdrun wait` tells it; None where its machine is gone."""
    if not cluster.lab.launcher.is_up:
        return None
    return cluster.start_on(cluster.lab.launcher, ["hvdrun", "wait", "last"]).wait(limit_seconds).returncode


def make_fault(build: BuildCluster, seed: int, *more: str) -> None:
    """One story; `more` are further words of hvdrun."""
    chance = random.Random(seed)  # noqa: S311 - a story, not a secret
    kind = "train" if seed % 2 else "sleep"
    fault = chance.choice([*FAULTS, *LAUNCHER_FAULTS])
    host = chance.choice(HOSTS)
    moment_seconds = chance.uniform(0, 5.0 if kind == "train" else 3.5)
    cluster = build(len(HOSTS))
    cluster.configure_ssh("Host *\n  ConnectTimeout 5\n")
    cluster.write("job.py", TRAINS)
    lease = f"{LEASE_SECONDS:g}s"
    words = ("-np", "4", "-H", "host1:2,host2:1,host3:1", "--grace", "1s")
    limits, left_seconds = ["--lease", lease, "--launcher-timeout", lease], LEFT_SECONDS
    if more and fault in PARTING:
        limits += ["--server-timeout", lease]
        left_seconds += SAVE_SECONDS
    running = cluster.start(*more, *words, *limits, "python", "job.py", kind, forks=kind == "train")
    time.sleep(moment_seconds)  # the moment is what is tested, and no event marks it
    if more and fault == "kill hvdrun":
        kill_launcher(cluster)
    elif more and fault == "press Ctrl-C" and not running.is_running:
        assert cluster.start_on(cluster.lab.launcher, ["hvdrun", "stop"]).wait().returncode in {0, 69}
    elif fault in LAUNCHER_FAULTS:
        LAUNCHER_FAULTS[fault](cluster, running)
    else:
        FAULTS[fault](cluster[host], chance)
    finished = running.wait(LIMIT_SECONDS)
    waited = wait_detached(cluster, LIMIT_SECONDS) if more else None
    left = cluster.settle(left_seconds, with_sshd=False)
    cluster.end_sessions()
    story = f"seed {seed}: {kind}, {fault} ({host}) after {moment_seconds:.2f} s; exit code {finished.returncode}"
    print(story, "\n", finished.stderr)  # noqa: T201 - pytest shows it when the test fails
    assert not left, f"{story}\n" + "\n".join(left)
    own_words = [line for line in finished.stderr.splitlines() if not line.startswith(("[", "  "))]
    assert all(line.startswith("hvdrun: ") for line in own_words), f"{story}\n{finished.stderr}"
    assert finished.returncode in ENDINGS, f"{story}\n{finished.stderr}"
    assert waited is None or waited in {*ENDINGS, *DETACHED_ENDINGS}, f"{story}\n{finished.stderr}\n{waited}"
