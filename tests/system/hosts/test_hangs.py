"""A rank on another host that holds up the others is named with its host and its place."""

from tests.system.hangs import HANGS, RUNS
from tests.system.hosts.cluster import Cluster

BARRIERS = """
import torch
import worker_runtime.torch as hvd

def meet(name): hvd.allreduce(torch.ones(1), name=name)
"""
LINE = r"^hvdrun: rank 2 \(host2\) is in train\.py:\d+ in queue_get: items\.get\(\); 2 others have waited for it in"


def test_a_rank_of_another_host_is_named_and_shown(pair: Cluster) -> None:
    pair.write("train.py", HANGS + BARRIERS + RUNS)
    words = ("-np", "3", "-H", "host1:2,host2:1", "--watch-after", "1", "python", "train.py", "queue_get:2")
    running = pair.start(*words, forks=True)
    running.stderr.wait_for(LINE, 60)
    shown = pair.start_on(pair.lab.launcher, ["hvdrun", "stacks"]).wait()
    assert shown.returncode == 0, shown.stderr
    assert "ranks 0-1 (host1):\n  in a call of hvdrun, which waits for other ranks\n" in shown.stdout
    assert "rank 2 (host2):\n" in shown.stdout
    pair.write("go.0", "")
    assert running.wait().returncode == 0
