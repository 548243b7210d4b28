"""A training step on one card: `hvdrun -np 2 python benchmarks/card.py`, beside DDP; with `-np 1`, beside plain torch.

Workers without a card of their own share one. Their kernels take turns on it, so the time of a whole step says little;
the time until the host has enqueued it, the memory and the overlap do. Both contenders use the same backend, and take
turns step by step. Rank 0 prints lines of JSON, which map a name to a figure. `--device cpu` is a rehearsal.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from overlap import Interval, count_overlap
from paired import take_round
from shared_card import choose_card
from step_time import ALONE, DDP, SHAPES, STATIC, Shape, Step, Trainers, make_ours, make_sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import worker_runtime.torch as hvd

ROUNDS = 30
WARM_UP = range(-5, 0)
MODELS = ("large", "small")
TRACED_STEPS = 3
_PEERS = {1: ALONE, 2: DDP}
# The name of an event of the profiler: a kernel of NCCL, or on the CPU what gloo does, or a node of backward.
_COMMUNICATION = ("nccl", "gloo:")
_BACKWARD = "autograd::engine::evaluate_function"

Prepare = Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]

CONTENDERS: dict[str, Prepare] = {
    ALONE: lambda model: (model, make_sgd(model)),
    DDP: lambda model: (DistributedDataParallel(model), make_sgd(model)),
    STATIC: lambda model: (model, make_ours(model, elastic=False)),
}


@dataclass(frozen=True, slots=True)
class Card:
    """Where steps run. device: "cuda" or "cpu"."""

    device: str

    def finish(self) -> None:
        """Wait until the card has done all that is enqueued."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def measure_peak(self, step: Step) -> int:
        """The most bytes that tensors have taken during some steps; 0 on a CPU, where nobody counts them."""
        if self.device == "cpu":
            return 0
        for _ in WARM_UP:
            step()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    def time(self, step: Step, count: int) -> tuple[float, float]:
        """The seconds of a step, of so many in a row: until the host has enqueued it, and until it is done."""
        self.finish()
        if dist.get_world_size() > 1:
            dist.barrier()
            self.finish()
        began = time.perf_counter()
        for _ in range(count):
            step()
        enqueued = time.perf_counter() - began
        self.finish()
        return enqueued / count, (time.perf_counter() - began) / count


def make_trainers(shape: Shape, card: Card, names: Iterable[str]) -> Trainers:
    """Contenders that train copies of one model."""
    trainers = Trainers(shape, card.device)
    for name in names:
        trainers.add(name, CONTENDERS[name])
    return trainers


def measure_peaks(shape: Shape, card: Card, names: Iterable[str]) -> dict[str, int]:
    """The most bytes that each contender takes, alone on the card; 0 where nobody counts them."""
    peaks = {}
    for name in names:
        gc.collect()  # the models of the last measurement too
        trainers = make_trainers(shape, card, [name])
        peaks[name] = card.measure_peak(trainers.steps[name])
        del trainers
    return peaks


def measure_steps(shape: Shape, card: Card, rounds: int) -> str:
    """Our step beside the peer's."""
    peer = _PEERS[min(2, dist.get_world_size())]
    peaks = measure_peaks(shape, card, [STATIC, peer])
    trainers = make_trainers(shape, card, [STATIC, peer])
    turns = {name: lambda step=step: card.time(step, shape.steps) for name, step in trainers.steps.items()}  # type: ignore[misc]  # mypy infers no type for a lambda's default
    for number in WARM_UP:
        take_round(turns, number)
    results = [take_round(turns, number) for number in range(rounds)]
    if dist.get_world_size() > 1:
        trainers.check()
    ours, theirs = ([result[name] for result in results] for name in (STATIC, peer))
    enqueued = compare(*([seconds for seconds, _ in each] for each in (ours, theirs)))
    whole = compare(*([seconds for _, seconds in each] for each in (ours, theirs)))
    memory = f"{peaks[STATIC] / 1e6:.1f} MB, {peaks[peer] / 1e6:.1f}" if any(peaks.values()) else "not counted on a CPU"
    return f"host {enqueued}; whole step {whole}; peak memory {memory}"


def compare(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The medians, and the median ratio within a round."""
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    return f"{statistics.median(ours) * 1e3:.2f} ms, {statistics.median(theirs) * 1e3:.2f} (ratio {ratio:.2f})"


def measure_overlap(shape: Shape, card: Card) -> str:
    """How much of our communication runs while backward computes."""
    step = make_trainers(shape, card, [STATIC]).steps[STATIC]
    for _ in WARM_UP:
        step()
    card.finish()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if card.device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(TRACED_STEPS):
            step()
        card.finish()
    communication, computation = sort_events(profiler.events(), card.device)
    if not communication:
        return "not measured: the trace has no communication"
    total, shared = count_overlap(communication, computation)
    return f"{shared / total:.0%} of {total / 1e3 / TRACED_STEPS:.2f} ms a step, in {len(communication)} operations"


def sort_events(
    events: Iterable[torch.autograd.profiler_util.FunctionEvent], device: str
) -> tuple[list[Interval], list[Interval]]:
    """Communication and computation of a trace, as intervals in microseconds; on a card, of kernels alone."""
    communication: list[Interval] = []
    computation: list[Interval] = []
    for event in events:
        is_kernel = event.device_type == torch.autograd.DeviceType.CUDA  # an object of its own
        interval = float(event.time_range.start), float(event.time_range.end)
        if is_kernel != (device == "cuda"):
            continue
        if event.name.startswith(_COMMUNICATION):
            communication.append(interval)
        elif is_kernel or event.name.startswith(_BACKWARD):
            computation.append(interval)
    return communication, computation


def tell(name: str, figure: str) -> None:
    """Print a figure, on rank 0."""
    if dist.get_rank() == 0:
        print(json.dumps({name: figure}), flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="steps of each contender (default: %(default)s)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    if asked.device == "cuda":
        choose_card(hvd.local_rank(), is_shared=hvd.local_size() > torch.cuda.device_count())
    uses_nccl = asked.device == "cuda" and os.environ.get("HVD_BACKEND") != "gloo" and dist.is_nccl_available()
    dist.init_process_group("nccl" if uses_nccl else "gloo")
    card, size = Card(asked.device), dist.get_world_size()
    for model in MODELS:
        shape = SHAPES[model]
        tell(
            f"step, {shape.name}, N={size}",
            f"{measure_steps(shape, card, asked.rounds)} (ours, then {_PEERS[min(2, size)]})",
        )
    if size > 1:
        tell(f"overlap, N={size}", measure_overlap(SHAPES["large"], card))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
