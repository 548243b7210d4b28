"""A lost host takes only its copy of a snapshot: the others continue from theirs, and give it to the new host."""

import re

import pytest

from tests.system.hosts.cluster import Cluster
from tests.system.hosts.roles import find_agents, kill

OPTIONS = ("--lease", "2s", "--blacklist-cooldown-range", "1", "1")
TRAIN = """
import os, pathlib, time
import torch
import torch.distributed as dist
from hvdrun.torch import Snapshot

dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.nn.Linear(1, 1, bias=False)
with torch.no_grad():
    weight.weight.zero_()
snapshot = Snapshot(model=weight, step=0)
snapshot.restore()
number = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("round", number, "rank", rank, "from", snapshot.step, "with", int(weight.weight), flush=True)
while pathlib.Path("hold").exists():
    time.sleep(0.01)
is_over = torch.zeros(1)
while not is_over:
    added = torch.ones(1, 1)
    dist.all_reduce(added)
    with torch.no_grad():
        weight.weight += added
    snapshot.step += 1
    snapshot.save()
    time.sleep(0.02)
    if rank == 0 and snapshot.step % 10 == 0:
        print("saved", number, snapshot.step, flush=True)
        is_over.fill_(pathlib.Path("end").exists())
    dist.broadcast(is_over, 0)
os._exit(0)
"""


@pytest.mark.nightly
def test_the_hosts_that_are_left_give_their_copy_to_the_new_one(pair: Cluster) -> None:
    pair.write("train.py", TRAIN)
    job = pair.start("-np", "2", "-H", "host1:1,host2:1", "--max-restarts", "2", *OPTIONS, "python", "train.py")
    step = 0
    for number, lost in enumerate(("host2", "host1")):
        saved = job.stdout.wait_for(rf"saved {number} (\d+)\n(?s:.*)saved {number} (\d+)\n", 90)
        kill(*find_agents(pair[lost]))
        found = job.stdout.wait_for(rf"round {number + 1} rank 0 from (\d+) with (\d+)", 90)
        job.stdout.wait_for(rf"round {number + 1} rank 1 from {found[1]} with {found[2]}\n", 90)
        step = int(found[1])
        assert step >= int(saved[2])
        assert int(found[2]) == 2 * step  # each step was made once
    pair.write("end", "")
    finished = job.wait()
    assert finished.returncode == 0, finished.stderr
    lines = re.findall(r"which rank (\d) has; the random states of rank (\d) are lost", finished.stderr)
    assert lines == [("0", "1"), ("1", "0")]
    assert step
    pair.end_sessions()


@pytest.mark.nightly
def test_a_new_host_has_a_copy_when_the_other_is_lost_before_the_first_save(pair: Cluster) -> None:
    pair.write("train.py", TRAIN)
    job = pair.start("-np", "2", "-H", "host1:1,host2:1", "--max-restarts", "2", *OPTIONS, "python", "train.py")
    job.stdout.wait_for(r"saved 0 (\d+)\n(?s:.*)saved 0 (\d+)\n", 90)
    hold = pair.write("hold", "")
    kill(*find_agents(pair["host2"]))
    found = job.stdout.wait_for(r"round 1 rank 0 from (\d+) with (\d+)", 90)
    job.stdout.wait_for(rf"round 1 rank 1 from {found[1]} with {found[2]}\n", 90)
    kill(*find_agents(pair["host1"]))
    for rank in range(2):
        job.stdout.wait_for(rf"round 2 rank {rank} from {found[1]} with {found[2]}\n", 90)
    pair.write("end", "")
    hold.unlink()
    finished = job.wait()
    assert finished.returncode == 0, finished.stderr
    pair.end_sessions()
