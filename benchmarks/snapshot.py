"""What `Snapshot.save()` costs beside the copy itself.

    .venv/bin/python benchmarks/snapshot.py --rounds 40

One process keeps a model of 25 million parameters, and Adam's state. A round copies the tensors into memory that is
mapped already, and then saves. The cost is the median of the differences. It is processor time: what else the machine
does does not count.
"""

import argparse
import os
import statistics
import sys
import time

import torch
from tables import describe_machine

from hvdrun.torch import Snapshot

TARGET_MS = 1.0
WIDTH, LAYERS = 687, 53  # as many parameters and tensors as ResNet-50 has


def make_training(width: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model after its first step."""
    layers = [
        layer
        for _ in range(LAYERS)
        for layer in (torch.nn.Linear(width, width, bias=False), torch.nn.BatchNorm1d(width))
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, width)).sum().backward()
    optimizer.step()
    return model, optimizer


def list_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All that a snapshot copies."""
    states = optimizer.state_dict()["state"]
    return [*model.state_dict().values(), *(states[number][name] for number in states for name in states[number])]


def measure(what: str, width: int, rounds: int) -> tuple[float, float]:
    """Print a row; return the milliseconds of the copy, and what a save takes beside it."""
    model, optimizer = make_training(width)
    os.environ["HVD_SNAPSHOT_FD"] = str(os.memfd_create("hvdrun-snapshot"))
    snapshot = Snapshot(model=model, optimizer=optimizer, step=0)
    snapshot.restore()
    tensors = list_tensors(model, optimizer)
    copies, saves = [], []
    for _ in range(3):  # the first ones take their memory from the kernel
        snapshot.save()
    views = [views for _, _, views in snapshot._views.values()]  # noqa: SLF001 - the memory that a save writes
    for number in range(rounds):
        began = time.thread_time()
        with torch.no_grad():
            torch._foreach_copy_(views[number % 2], tensors)
        between = time.thread_time()
        snapshot.save()
        saves.append(time.thread_time() - between)
        copies.append(between - began)
    size = sum(tensor.nbytes for tensor in tensors) / 1e6
    copy_ms = statistics.median(copies) * 1e3
    beside_ms = statistics.median(save - copy for save, copy in zip(saves, copies, strict=True)) * 1e3
    print(f"| {what} | {len(tensors)} | {size:.1f} MB | {copy_ms:.1f} ms | {beside_ms:+.2f} ms |", flush=True)
    return copy_ms, beside_ms


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="(default: %(default)s)")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the layers (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(describe_machine(), "one thread", sep=", ")
    print("| | tensors | size | copy | save, beside it |\n|---|---|---|---|---|")
    measure("as many tensors, small", 8, arguments.rounds)
    _, beside_ms = measure("25 million parameters and Adam", arguments.width, arguments.rounds)
    if beside_ms > TARGET_MS:
        print(f"missed: {beside_ms:.2f} ms beside the copy, not {TARGET_MS:g} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
