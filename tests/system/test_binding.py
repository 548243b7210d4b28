"""-bind-to: workers run on the CPUs that it says, forked and executed ones, from their first line on."""

import json
import os
import re

import pytest

from hvdrun.processes.binding import BindTo, choose_cpus, read_topology
from tests.system.launcher import Launcher
from tests.system.tables import rest_nightly

# What the program finds when it starts, and what a thread and a child of it find.
PRINTS = """
import json, os, subprocess, sys, threading
first = sorted(os.sched_getaffinity(0))
threads = []
thread = threading.Thread(target=lambda: threads.append(sorted(os.sched_getaffinity(0))))
thread.start()
thread.join()
child = subprocess.run(["grep", "Cpus_allowed_list", "/proc/self/status"], capture_output=True, text=True).stdout
print(json.dumps([int(os.environ["LOCAL_RANK"]), first, threads[0], child.split()[1]]))
"""


@pytest.mark.parametrize(
    ("bind_to", "forks"),
    rest_nightly([("core", True), ("core", False), ("socket", True), ("numa", True), ("none", True)]),
)
def test_each_worker_has_the_cpus_that_binding_gives_it(hvdrun: Launcher, bind_to: str, *, forks: bool) -> None:
    """So have its threads and children; `hvdrun -v` shows them."""
    topology = read_topology(os.sched_getaffinity(0))
    hvdrun.write("train.py", PRINTS)
    finished = hvdrun("-np", "3", "-v", "--no-prefix", "-bind-to", bind_to, "python", "train.py", forks=forks)
    assert finished.returncode == 0, finished.stderr
    for line in finished.stdout.splitlines():
        local_rank, first, thread, child = json.loads(line)
        chosen = None if bind_to == "none" else choose_cpus(topology, BindTo(bind_to), local_rank)
        assert first == thread == sorted(chosen or os.sched_getaffinity(0))
        assert all(str(cpu) in child or "-" in child for cpu in first)
    way = "forked" if forks else r"executed \(--no-prefork\)"
    bound = "" if bind_to == "none" else r", bound to CPUs? [\d,-]+"
    said = re.findall(rf"localhost:\d is process \d+, {way}{bound}$", finished.stderr, re.MULTILINE)
    assert len(said) == len(finished.stdout.splitlines()) == 3
