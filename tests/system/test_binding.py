"""-bind-to: workers run on the CPUs that it says, forked and executed ones, from their first line on."""

import json
import os

import pytest

from hvdrun.agent.binding import BindTo, choose_cpus, read_topology
from tests.system.launcher import Launcher

# What the program finds when it starts, and what a thread and a child of it find.
TELLS = """
import json, os, subprocess, sys, threading
first = sorted(os.sched_getaffinity(0))
threads = []
thread = threading.Thread(target=lambda: threads.append(sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
child = subprocess.run(["grep", "Cpus_allowed_list", "/proc/self/status"], capture_output=True, text=True).stdout
print(json.dumps([int(os.environ["LOCAL_RANK"]), first, threads[0], child.split()[1]]))
"""


def find_bindings(hvdrun: Launcher, *options: str) -> dict[int, list[int]]:
    """The CPUs of each worker, by its local rank; its threads and children have the same."""
    hvdrun.write("train.py", TELLS)
    finished = hvdrun("-np", "3", "--no-prefix", *options, "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    found = {}
    for line in finished.stdout.splitlines():
        local_rank, first, thread, child = json.loads(line)
        assert thread == first
        assert all(str(cpu) in child or "-" in child for cpu in first)
        found[local_rank] = first
    assert sorted(found) == [0, 1, 2]
    return found


@pytest.mark.parametrize("prefork", [(), ("--no-prefork",)], ids=["forked", "executed"])
@pytest.mark.parametrize("bind_to", [BindTo.CORE, BindTo.SOCKET, BindTo.NUMA])
def test_each_worker_has_the_cpus_that_binding_gives_it(
    hvdrun: Launcher, bind_to: BindTo, prefork: tuple[str, ...]
) -> None:
    topology = read_topology(os.sched_getaffinity(0))
    assert find_bindings(hvdrun, "-bind-to", bind_to, *prefork) == {
        local_rank: sorted(choose_cpus(topology, bind_to, local_rank) or ()) for local_rank in range(3)
    }


@pytest.mark.parametrize("options", [(), ("-bind-to", "none"), ("-bind-to", "none", "--no-prefork")])
def test_workers_that_are_not_bound_may_use_all_cpus(hvdrun: Launcher, options: tuple[str, ...]) -> None:
    everything = sorted(os.sched_getaffinity(0))
    assert set(map(tuple, find_bindings(hvdrun, *options).values())) == {tuple(everything)}


def test_the_binding_of_each_worker_is_told_to_whoever_wants_to_know(hvdrun: Launcher) -> None:
    for options, way in (((), "forked"), (("--no-prefork",), r"executed \(--no-prefork\)")):
        hvdrun.write("train.py", "pass\n")
        started = hvdrun.start("-np", "1", "-v", "-bind-to", "core", *options, "python", "train.py")
        started.stderr.wait_for(rf"localhost:0 is process \d+, {way}, bound to CPUs? [\d,-]+$", 30.0)
        assert started.wait().returncode == 0
