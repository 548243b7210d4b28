"""What a timeline costs: `hvdrun -np 2 python benchmarks/timeline.py`.

Blocks of steps with a timeline and without one take turns, of a model of 25 million parameters and of one of 10,000.
Rank 0 prints the median of each, and the median of the paired ratios.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import worker_runtime.torch as hvd

SHAPES = {"25 million parameters": (456, 120, 3), "10,000 parameters": (58, 3, 100)}  # width, layers, steps of a block
ROUNDS = 30
BATCH = 4


def measure(width: int, layers: int, steps: int, path: Path) -> dict[str, list[float]]:
    """Seconds of a step, for each block."""
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())
    batch = torch.ones(BATCH, width)

    def run_block() -> float:
        hvd.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        return (time.perf_counter() - began) / steps

    run_block()
    seconds: dict[str, list[float]] = {"off": [], "on": []}
    for number in range(ROUNDS):
        for name in sorted(seconds, reverse=bool(number % 2)):
            if name == "on":
                hvd.start_timeline(path)
            seconds[name].append(run_block())
            hvd.stop_timeline()
    return seconds


def main() -> None:
    """Measure, and print."""
    torch.set_num_threads(1)
    hvd.init()
    with tempfile.TemporaryDirectory() as folder:
        for name, (width, layers, steps) in SHAPES.items():
            seconds = measure(width, layers, steps, Path(folder) / f"{os.getpid()}.json")
            ratios = [on / off for on, off in zip(seconds["on"], seconds["off"], strict=True)]
            off, on = (statistics.median(seconds[each]) * 1000 for each in ("off", "on"))
            if hvd.rank() == 0:
                low, _, high = statistics.quantiles(ratios, n=4)
                middle = statistics.median(ratios)
                print(f"{name}: {off:.2f} ms off, {on:.2f} ms on; {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
