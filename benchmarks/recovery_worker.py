"""The training of the recovery benchmark: endless steps, with a record of each step's end; started by `recovery.py`.

Its arguments: ours or ddp, the folder of the records, the width, the number of children, how it fails on SIGUSR1, the
device.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

import torch
import torch.distributed as dist
from shared_card import choose_card
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

COMMIT_EVERY = 10
INPUTS, OUTPUTS, BATCH = 100, 10, 8


def raise_error() -> NoReturn:
    """Fail as most programs do."""
    raise ValueError("of the program's own")


FATES: dict[str, Callable[[], NoReturn]] = {
    "exception": raise_error,
    "exit": lambda: sys.exit(3),
    "_exit": lambda: os._exit(3),
}


class Failure:
    """Fails when it is called after a SIGUSR1."""

    def __init__(self, notes: "Notes", fate: str) -> None:
        self._notes = notes
        self._fate = fate
        self._is_due = False
        signal.signal(signal.SIGUSR1, self._note)

    def happen(self) -> None:
        """The step has ended."""
        if self._is_due:
            self._notes.note("fails")
            FATES[self._fate]()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._is_due = True


class Noise(IterableDataset[torch.Tensor]):
    """Inputs without end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(INPUTS)


class Notes(logging.Handler):
    """Records events with their times, including the log lines of recovery."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file

    def note(self, what: str, **more: int) -> None:
        """Write one line of JSON; `at` is a time of the machine's clock that all its processes share."""
        self._file.write(json.dumps({"what": what, "at": time.monotonic(), **more}) + "\n")

    def emit(self, record: logging.LogRecord) -> None:
        """As `logging.Handler`."""
        self.note(record.getMessage().partition(":")[0])


def build_network(width: int) -> nn.Sequential:
    """Two layers with about (INPUTS + OUTPUTS + 1) * width parameters, the same on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, OUTPUTS))


def make_batches(children: int) -> Iterator[torch.Tensor]:
    """Endless batches from a number of data loader processes."""
    return iter(DataLoader(Noise(), batch_size=BATCH, num_workers=children))


def train_ours(notes: Notes, width: int, children: int, failure: Failure, device: str) -> None:
    """As an elastic function."""
    import worker_runtime.torch as hvd  # noqa: PLC0415 - the peer needs none of it

    log = logging.getLogger("hvd.recovery")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(notes)
    hvd.init()
    if device == "cuda":
        choose_card(hvd.local_rank(), is_shared=True)
    model = build_network(width).to(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        notes.note("entered", size=hvd.size())
        batches = make_batches(children)
        batch = next(batches)
        notes.note("fed")
        while True:
            optimizer.zero_grad()
            model(batch.to(device)).square().mean().backward()
            optimizer.step()
            if device == "cuda":
                torch.cuda.synchronize()
            state.step += 1
            notes.note("step", step=state.step, size=hvd.size(), rank=hvd.rank())
            if state.step % COMMIT_EVERY == 0:
                state.commit()
                notes.note("committed")
            failure.happen()
            batch = next(batches)

    notes.note("ready")
    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))


def train_ddp(notes: Notes, width: int, children: int, failure: Failure) -> None:
    """Train as a plain script under torchrun, which starts again after each loss."""
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(build_network(width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = make_batches(children)
    step = 0
    while True:
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()
        step += 1
        notes.note("step", step=step, size=dist.get_world_size(), rank=dist.get_rank())
        failure.happen()


def main() -> None:
    """Train until this process is ended."""
    way, folder, width, children, fate, device = sys.argv[1:]
    torch.set_num_threads(1)
    with Path(folder, f"{os.getpid()}.notes").open("w", buffering=1, encoding="utf-8") as file:
        notes = Notes(file)
        notes.note("started")
        train = {"ours": partial(train_ours, device=device), "ddp": train_ddp}[way]
        train(notes, int(width), int(children), Failure(notes, fate))


if __name__ == "__main__":
    main()
