"""Each kind of failure on two hosts: hvdrun names the culprit, as `docs/causes.py` has it, and prints a score."""

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.host import Host
from tests.lab.network import Direction
from tests.lab.process import HostProcess
from tests.system import jumping_clock, memory_cgroup
from tests.system.causes import (
    LIMIT_SECONDS,
    NAN,
    SCRIPT,
    STALL,
    START,
    TWO,
    Score,
    check_cause,
    keep_score,
    list_cells,
)
from tests.system.hosts.cluster import Cluster
from tests.system.hosts.roles import find_agents, find_watchdogs, kill
from tests.system.launcher import Running

STOPPED_SECONDS = 4.0  # twice as long as an agent waits
END = frozenset({"watchdog", "forkserver"})  # the job goes on
LOST = frozenset({"cut", "cut in", "cut out", "part", "power", "end", "ssh", "stop"})  # sshd may keep its sessions


@pytest.fixture(scope="module")
def score(request: pytest.FixtureRequest) -> Iterator[Score]:
    """The score of this run."""
    yield from keep_score(request, TWO)


def find(host: Host, words: str) -> list[HostProcess]:
    """The processes of a host with these words on their command line."""
    return [process for process in host.processes() if words in str(process)]


def signal_worker(cluster: Cluster, running: Running, number: signal.Signals) -> None:
    """Send rank 2 a signal."""
    pid = int(running.stdout.wait_for(r"^\[2@host2\] trains as (\d+)$", LIMIT_SECONDS)[1])
    (worker,) = [process for process in cluster["host2"].processes() if process.pid_on_host == pid]
    os.kill(worker.pid, number)


def part(cluster: Cluster) -> None:
    """Let host1 and host2 no longer hear each other, though both hear hvdrun."""
    cluster["host1"].network.ignore(cluster["host2"].network)
    cluster["host2"].network.ignore(cluster["host1"].network)


def stop_a_while(running: Running) -> None:
    """Stop hvdrun for longer than its hosts wait."""
    running.send(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)  # longer than the hosts wait for hvdrun
    running.send(signal.SIGCONT)


def jump(cluster: Cluster, running: Running) -> None:
    """Set hvdrun's clock forward, and kill a worker when hvdrun has seen it."""
    cluster.write("jump", "")
    time.sleep(1.0)  # for several of its ticks
    signal_worker(cluster, running, signal.SIGKILL)


FROM_OUTSIDE: dict[str, Callable[[Cluster, Running], object]] = {
    "kill": lambda cluster, running: signal_worker(cluster, running, signal.SIGKILL),
    "terminate": lambda cluster, running: signal_worker(cluster, running, signal.SIGTERM),
    "agent": lambda cluster, _: kill(*find_agents(cluster["host2"])),
    "watchdog": lambda cluster, _: kill(*find_watchdogs(cluster["host2"])),
    "forkserver": lambda cluster, _: kill(*find(cluster["host2"], "worker_runtime.startup.forkserver")),
    "sequencer": lambda cluster, _: kill(*find(cluster["host1"], "worker_runtime.coordination.sequencer")),
    "power": lambda cluster, _: cluster["host2"].destroy(),
    "cut": lambda cluster, _: cluster["host2"].network.cut(),
    "cut in": lambda cluster, _: cluster["host2"].network.cut(Direction.IN),
    "cut out": lambda cluster, _: cluster["host2"].network.cut(Direction.OUT),
    "part": lambda cluster, _: part(cluster),
    "ssh": lambda cluster, _: cluster["host2"].sshd.kill_sessions(),
    "stop": lambda _, running: stop_a_while(running),
    "end": lambda _, running: running.send(signal.SIGKILL),
    "clock": jump,
}


@pytest.mark.parametrize(("kind", "way"), list_cells(TWO))
def test_the_first_cause_on_two_hosts_is_named(pair: Cluster, score: Score, kind: Any, way: Any) -> None:
    score.note(kind.what, way.key, is_right=False)
    pair.write("train.py", SCRIPT)
    words: list[str] = []
    with contextlib.ExitStack() as stack:
        if way.key == "memory":
            group = stack.enter_context(memory_cgroup.limit())
            words = ["--remote-prefix", f'if [ "$(hostname)" = host2 ]; then {memory_cgroup.join(group)}; fi']
        if way.key == "import":
            modules = pair["host1"].locate(Path("/tmp/modules"))  # noqa: S108 - each host has its own
            modules.mkdir()
            stack.callback(shutil.rmtree, modules)
            (modules / "of_one_host.py").write_text("", encoding="utf-8")
        limits = {"hang": START, "nan": NAN}.get(way.key, ("--launcher-timeout", "2s", "--lease", "2s"))
        if way.key == "wait":
            words = [word for name, value in STALL.items() for word in ("-x", f"{name}={value}")]
        job = ("-np", "3", "-H", "host1:2,host2:1", *limits, *words, "python", "train.py", way.key, "2")
        environment = jumping_clock.build(pair.directory) if way.key == "clock" else {}
        running = pair.start(*job, environment=environment, forks=True)
        if way.key not in {"hang", "import"}:
            for rank in range(3):
                running.stdout.wait_for(rf"^\[{rank}@host\d\] trains as", LIMIT_SECONDS)
        pair.write("go", "")
        if way.key in FROM_OUTSIDE:
            FROM_OUTSIDE[way.key](pair, running)
        if way.key in END:
            pair.write("end", "")
        finished = running.wait()
    if way.key in LOST:
        assert not pair.settle(with_sshd=False)
        pair.end_sessions()
    check_cause(kind, way, finished, TWO)
    if way.key == "clock":
        assert re.search(r" failed first after [\d.]+ s: ", finished.stderr)
    score.note(kind.what, way.key, is_right=True)
