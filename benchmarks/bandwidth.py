"""Bandwidth of an allreduce of one large tensor: `hvdrun -np 2 python benchmarks/bandwidth.py [--device cpu]`.

Rank 0 prints one line of JSON with the bus bandwidth in GB/s: 2 (n - 1) / n times the tensor's bytes, divided by the
median time. This is the smallest amount that each worker must send. If there are more workers than GPUs, they share
them.
"""

import argparse
import json
import statistics
import time

import torch
from shared_card import choose_card

import worker_runtime.torch as hvd

BYTES = 256 * 1024 * 1024
ROUNDS = 10


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--bytes", type=int, default=BYTES)
    asked = parser.parse_args()
    hvd.init()
    if asked.device == "cuda":
        choose_card(hvd.local_rank(), is_shared=hvd.local_size() > torch.cuda.device_count())
    tensor = torch.ones(asked.bytes // 4, device=asked.device)
    seconds = []
    for _ in range(ROUNDS):
        hvd.barrier()
        began = time.perf_counter()
        hvd.allreduce_(tensor, op=hvd.Max)
        if asked.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    count = hvd.size()
    speed = 2 * (count - 1) / count * asked.bytes / statistics.median(seconds) / 1e9
    if hvd.rank() == 0:
        print(json.dumps({"workers": count, "bytes": asked.bytes, "gigabytes_per_second": round(speed, 3)}))


if __name__ == "__main__":
    main()
