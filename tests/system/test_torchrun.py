"""A command line that was written for torchrun: it runs as it is."""

from tests.system.launcher import Launcher

ADDS = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(total.item(), os.environ["LOCAL_WORLD_SIZE"], os.environ["TORCHELASTIC_MAX_RESTARTS"], *sys.argv[1:], flush=True)
dist.destroy_process_group()
"""


def test_the_words_of_torchrun_start_the_workers_of_torch(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", ADDS)
    finished = hvdrun("torchrun", "--standalone", "--nproc_per_node=2", "--max-restarts", "3", "train.py", "--lr", "1")
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == [f"[{rank}] 3.0 2 3 --lr 1" for rank in range(2)]
    own = [line for line in finished.stderr.splitlines() if "no effect" in line]
    assert own == ["hvdrun: --standalone has no effect: hvdrun connects, starts and watches the workers by itself."]
