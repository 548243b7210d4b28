"""`python -m worker_runtime.torch.bandwidth`, for `hvdrun doctor --test`: how fast workers exchange tensors.

All ranks reduce one tensor. Then pairs of hosts reduce one, or pairs of ranks where there is one host. In each round
each member is in one pair, so that no pair waits for another. Rank 0 prints the measurements as JSON in one line, which
begins with `MARK`.
"""

import json
import os
import time
from collections.abc import Sequence

import torch

import worker_runtime.torch as hvd
from worker_runtime.groups.backends.choice import Features
from worker_runtime.rendezvous import Backend, read_backend

MARK = "hvdrun-bandwidth "
BYTES = 64_000_000
MOST_ROUNDS = 15  # of pairs: among 16 hosts or fewer each meets every other
_FIRST_BYTES = BYTES // 16  # a first, short measurement: where it is slow, BYTES are not sent
_SLOW_SECONDS = 0.5
_REPEATS = 3

Pair = tuple[int, int]


def plan_rounds(members: Sequence[int]) -> list[list[Pair]]:
    """At most MOST_ROUNDS rounds of pairs; each member is in one pair of a round (the circle method of tournaments)."""
    circle: list[int | None] = list(members)
    if len(circle) % 2:
        circle.append(None)  # whose partner pauses

    rounds = []
    for _ in range(min(MOST_ROUNDS, len(circle) - 1)):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        planned = [(min(one, other), max(one, other)) for one, other in pairs if one is not None and other is not None]
        if planned:  # a single member meets nobody
            rounds.append(planned)
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def measure(size: int, device: torch.device, process_set: hvd.ProcessSet, name: str) -> float:
    """The shortest time, in seconds, of an allreduce of `size` bytes of float32 over the ranks of the set."""
    tensor = torch.ones(size // 4, dtype=torch.float32, device=device)
    best = float("inf")
    for number in range(_REPEATS + 1):
        began = time.perf_counter()
        hvd.allreduce_(tensor, op=hvd.Max, name=f"{name}.{size}.{number}", process_set=process_set)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number:  # the first one connects the ranks
            best = min(best, time.perf_counter() - began)
    return best


def measure_whole(device: torch.device, process_set: hvd.ProcessSet, name: str) -> float:
    """The time of an allreduce of `BYTES`, in seconds; estimated from a part where the ranks are slow."""
    # All ranks of the set have to choose the same way.
    first = measure(_FIRST_BYTES, device, process_set, name)
    seconds = torch.tensor(first, dtype=torch.float32, device="cpu")
    slowest = float(hvd.allreduce(seconds, op=hvd.Max, name=f"{name}.first", process_set=process_set))
    if slowest > _SLOW_SECONDS:
        return slowest * BYTES / _FIRST_BYTES
    return measure(BYTES, device, process_set, name)


def measure_pairs(members: Sequence[int], device: torch.device) -> list[dict[str, object]]:
    """Let pairs of these ranks reduce a tensor; return the measurements of all pairs, the same on all ranks."""
    measured = []
    for number, planned in enumerate(plan_rounds(members)):
        if hvd.size() == len(planned[0]):
            sets = {planned[0]: hvd.global_process_set}
        else:
            sets = {pair: hvd.add_process_set(pair) for pair in planned}

        found = None
        for pair, process_set in sets.items():
            if hvd.rank() in pair:
                name = f"pair.{pair}"
                latency = measure(4, device, process_set, name)
                found = {"ranks": pair, "seconds": measure_whole(device, process_set, name), "latency": latency}
        each = hvd.allgather_object(found, name=f"round.{number}")
        measured += [each[first] for first, _ in planned]

        for process_set in sets.values():
            if process_set is not hvd.global_process_set:
                hvd.remove_process_set(process_set)
    return measured


def main() -> None:
    """Measure, and print."""
    hvd.init()
    device = torch.device("cpu")
    if read_backend(os.environ) is Backend.NCCL:
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)

    hosts: list[tuple[str, int]] = hvd.allgather_object((os.environ["HOROVOD_HOSTNAME"], hvd.local_rank()))
    members = [rank for rank, (_, local_rank) in enumerate(hosts) if local_rank == 0]
    if len(members) == 1:
        members = list(range(hvd.size()))
    whole = measure_whole(device, hvd.global_process_set, "all")
    pairs = measure_pairs(members, device)

    if hvd.rank() == 0:
        measured = {
            "bytes": BYTES,
            "hosts": [host for host, _ in hosts],
            "seconds": whole,
            "pairs": pairs,
            "has_ucc": Features.look().has_ucc,
        }
        print(MARK + json.dumps(measured), flush=True)  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
