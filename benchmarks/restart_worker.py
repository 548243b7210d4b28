"""The script of `restart.py`: all_reduces in a loop, killed once in a while, and started again.

It writes when a worker kills itself, and when the first all_reduce of a life is complete, one line of JSON each.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

VICTIM = 1


def note(what: str, number: int) -> None:
    """Write one line."""
    line = {"what": what, "round": number, "rank": int(os.environ["RANK"]), "at": time.time()}
    with Path(f"{os.getpid()}.notes").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def broadcast_in_handler(*_: object) -> None:
    """What Lightning's handler of SIGTERM does."""
    dist.broadcast(torch.zeros(1), src=0)


def main() -> None:
    """Train, in a way: `kind` says how the workers meet SIGTERM, `kills` how often one is killed."""
    kind, kills, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if kind == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    if kind == "handler":
        signal.signal(signal.SIGTERM, broadcast_in_handler)
    data = TensorDataset(torch.zeros(100_000, 1))
    batches = iter(DataLoader(data, batch_size=1, num_workers=2)) if kind == "children" else None
    dist.all_reduce(torch.ones(1))
    note("complete", number)
    began = time.monotonic()
    while True:
        if batches is not None:
            next(batches)
        time.sleep(0.02)
        if number < kills and dist.get_rank() == VICTIM and time.monotonic() - began > seconds:
            note("killed", number)
            os.kill(os.getpid(), signal.SIGKILL)
        # The last life ends together: all see the same sum.
        left = torch.tensor([float(time.monotonic() - began < 1.0)])
        dist.all_reduce(left)
        if number >= kills and not left.item():
            break
    dist.destroy_process_group()


main()
