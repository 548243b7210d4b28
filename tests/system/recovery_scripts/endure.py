"""Trains on handwritten digits until a file exists, and writes a line for each step: when, which, and of how many.

A step takes as long as on an accelerator that is waited for: so the rate of the steps is the job's, and not that of a
machine that has fewer cores than the job has workers. Its arguments: the folder, and that time in seconds.
"""

import hashlib
import importlib
import os
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import worker_runtime.torch as hvd

BATCH = 16
COMMIT_EVERY = 10
STOP = "stop"
END = "end"  # in this file the last rank 0 says what has come of it


def load_data() -> TensorDataset:
    """The digits: vectors of 64 numbers from 0 to 1, and their labels."""
    datasets = importlib.import_module("sklearn.datasets")  # a second, which those who read this alone do without
    digits = datasets.load_digits()
    return TensorDataset(torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target).long())


def build_network() -> nn.Sequential:
    """The same on all ranks: vectors of shape (n, 64) to scores of shape (n, 10)."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    """With a weight decay, so that the loss settles where it does not depend on how the samples were dealt out."""
    return torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)


def find_loss(network: nn.Module, data: TensorDataset) -> float:
    """The mean loss over all samples, with what the weight decay adds."""
    with torch.no_grad():
        decay = sum(parameter.square().sum() for parameter in network.parameters()) * 1e-3 / 2
        return float(functional.cross_entropy(network(data.tensors[0]), data.tensors[1]) + decay)


def step(network: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> None:
    """One step with these samples."""
    optimizer.zero_grad()
    functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    optimizer.step()


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, data: TensorDataset, folder: Path, seconds: float, notes: TextIO) -> None:
    """Until all have seen the file."""
    batches = DataLoader(data, batch_size=BATCH, sampler=state.sampler)
    while not state.is_over:
        due = time.monotonic() + seconds
        for images, labels in batches:
            step(state.model, state.optimizer, images, labels)
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + seconds
            state.sampler.record_batch(state.step, len(labels))
            state.step += 1
            notes.write(f"{time.monotonic()} {state.step} {hvd.size()}\n")
            if state.step % COMMIT_EVERY == 0:
                state.commit()
        is_there = torch.tensor(int((folder / STOP).exists()))
        state.is_over = bool(hvd.allreduce(is_there, op=hvd.Max, name="stop").item())
        state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


def main() -> None:
    """Train."""
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    hvd.init()
    data, network = load_data(), build_network()
    optimizer = hvd.DistributedOptimizer(make_optimizer(network), network.named_parameters())
    sampler = hvd.elastic.ElasticSampler(data, seed=1)
    state = hvd.elastic.TorchState(model=network, optimizer=optimizer, sampler=sampler, step=0, epoch=0, is_over=False)
    path = folder / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.steps"
    with path.open("w", buffering=1, encoding="ascii") as notes:
        train(state, data, folder, seconds, notes)
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters())
    digests = hvd.allgather_object(hashlib.sha256(parameters).hexdigest())
    if hvd.rank() == 0:
        is_equal = len(set(digests)) == 1
        (folder / END).write_text(
            f"{hvd.size()} {is_equal:d} {state.step} {find_loss(network, data)}", encoding="ascii"
        )
    hvd.shutdown()


if __name__ == "__main__":
    main()
