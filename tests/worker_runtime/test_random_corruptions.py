"""Random corruptions of a training: each is found, with its rank and its parameter. Healthy trainings raise no alarm.

`make soak` tries more of them: HVDRUN_SOAK_CORRUPTIONS corruptions, and HVDRUN_SOAK_STEPS steps of healthy trainings.
"""

import io
import math
import os
import random
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.reduction.bits import flip_bit
from worker_runtime.errors import ReplicasDifferError

CORRUPTIONS = int(os.environ.get("HVDRUN_SOAK_CORRUPTIONS", "8"))
HEALTHY_STEPS = int(os.environ.get("HVDRUN_SOAK_STEPS", "200"))
SIZE, STEPS = 3, 8
MOST_STEPS = 2500  # of one healthy training
WAYS = ("plain", "scaler", "Horovod's order", "accumulated", "sparse", "float16", "Adasum", "groups")
FAULTS = ("gradient", "gradient", "parameter", "state")  # one half of the programs gets a bad gradient
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
VALUES = (math.nan, math.inf, -math.inf)
_OVERFLOW = 2.0**30  # a factor of a loss: with the scale, its gradients become infinite
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.001),
}


@dataclass(frozen=True)
class Program:
    """A training, and what happens to it.

    seed: of the random choice of all other fields.
    way: how gradients are averaged.
    optimizer, dtype: the training's.
    fault: what is corrupted: a gradient gets `value`, or a bit of a parameter or of the optimizer's state flips.
    rank, step: where and when.
    place: the index of the parameter that is hit.
    value: not finite.
    chance: from 0 to 1; chooses the element or the bit.
    """

    seed: int
    way: str
    optimizer: str
    dtype: torch.dtype
    fault: str
    rank: int
    step: int
    place: int
    value: float
    chance: float

    @classmethod
    def choose(cls, seed: int) -> "Program":
        """The program that this seed gives."""
        chance = random.Random(seed)  # noqa: S311 - no secret
        way = WAYS[seed % len(WAYS)]
        fault = chance.choice(FAULTS)
        if way in ("sparse", "Adasum") and fault == "state":
            fault = "parameter"
        return cls(
            seed=seed,
            way=way,
            optimizer="SGD" if way == "sparse" else chance.choice(list(OPTIMIZERS)),
            dtype=torch.float32 if way in ("scaler", "Horovod's order", "float16", "Adasum") else chance.choice(DTYPES),
            fault=fault,
            rank=chance.randrange(SIZE),
            step=chance.randrange(2, STEPS - 3),
            place=chance.randrange(4),
            value=chance.choice(VALUES),
            chance=chance.random(),
        )


class Training:
    """One rank's training.

    Args:
        program: what is trained.
        checks: the variables of the checks.
    """

    def __init__(self, program: Program, **checks: str) -> None:
        torch.manual_seed(program.seed)
        self.program = program
        self.is_bad = False  # a gradient gets a value that is not finite
        layers = [torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)]
        self.table = torch.nn.Embedding(9, 6, sparse=program.way == "sparse")
        self.model = torch.nn.Sequential(*layers).to(program.dtype)
        self.table.to(program.dtype)
        self.named = [*self.model.named_parameters(), *self.table.named_parameters("table")]
        plain = OPTIMIZERS[program.optimizer]([parameter for _, parameter in self.named])
        if program.way == "sparse":
            plain = torch.optim.SGD([parameter for _, parameter in self.named], lr=0.01)
        self.passes = 2 if program.way == "accumulated" else 1
        os.environ.update(checks)
        self.optimizer: Any = hvd.DistributedOptimizer(
            plain,
            self.named,
            compression=hvd.Compression.fp16 if program.way == "float16" else hvd.Compression.none,
            backward_passes_per_step=self.passes,
            op=hvd.Adasum if program.way == "Adasum" else hvd.Average,
            groups=2 if program.way == "groups" else None,
        )
        for name in checks:
            del os.environ[name]
        self.has_scaler = program.way in ("scaler", "Horovod's order")
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3, enabled=self.has_scaler)
        self.name, self.parameter = self.named[program.place]
        if program.way == "sparse" and program.fault == "gradient":
            self.name, self.parameter = self.named[-1]
        if not self.parameter.grad_fn and self.name != "table.weight":
            self.parameter.register_hook(self.spoil)

    def spoil(self, gradient: torch.Tensor) -> torch.Tensor:
        """In a bad step, return the gradient with a value that is not finite."""
        if not self.is_bad:
            return gradient
        changed = gradient.clone()
        changed.view(-1)[int(self.program.chance * changed.numel())] = self.program.value
        return changed

    def run_step(self, factor: float = 1.0) -> None:
        """One step, with a loss multiplied by the factor."""
        self.optimizer.zero_grad()
        for _ in range(self.passes):
            rows = self.table(torch.randint(9, (5,)))
            if self.is_bad and self.name == "table.weight":
                rows.register_hook(lambda gradient: gradient * self.program.value)
            loss = self.model(rows).square().mean() * factor
            self.scaler.scale(loss).backward()
        if self.program.way == "Horovod's order":
            self.optimizer.synchronize()
            self.scaler.unscale_(self.optimizer)
            with self.optimizer.skip_synchronize():
                self.scaler.step(self.optimizer)
        else:
            self.scaler.step(self.optimizer)
        self.scaler.update()

    def corrupt(self) -> None:
        """Flip a bit of a parameter, or of the optimizer's state for it."""
        tensor = self.parameter
        if self.program.fault == "state":
            tensors = [each for each in self.optimizer.state[self.parameter].values() if torch.is_tensor(each)]
            tensor = tensors[int(self.program.chance * len(tensors))]
        flip_bit(tensor, int(self.program.chance * tensor.numel() * tensor.element_size() * 8))


def find_corruption(program: Program) -> tuple[str, str, int]:
    """The name of the corrupted parameter, the message that this rank gets or prints, and the step of that."""
    training = Training(program, HVD_CHECK_NAN="1", HVD_CHECK_REPLICAS="1")
    torch.manual_seed(program.seed + hvd.rank())
    with redirect_stderr(io.StringIO()) as written:
        for step in range(1, STEPS + 1):
            # With a scaler the alarm comes when its scale has gone down to 1, after several bad steps.
            is_now = step == program.step or (training.has_scaler and step > program.step)
            training.is_bad = is_now and program.fault == "gradient" and hvd.rank() == program.rank
            if step == program.step and program.fault != "gradient" and hvd.rank() == program.rank:
                training.corrupt()
            try:
                training.run_step()
            except ReplicasDifferError as error:
                return training.name, str(error), step
            if program.fault == "gradient" and step == program.step and not training.has_scaler:
                break
    return training.name, written.getvalue(), step


@pytest.mark.parametrize("seed", range(CORRUPTIONS))
def test_a_random_corruption_is_found_with_its_rank_and_parameter(ranks: RankPool, seed: int) -> None:
    program = Program.choose(seed)
    found = ranks.run(find_corruption, program, size=SIZE)
    name = found[0][0]
    told = [text for _, text, _ in found]
    if program.fault == "gradient":
        assert f"hvdrun: rank {program.rank}'s gradient of {name} is not finite" in told[0], program
        assert told[1:] == ["", ""]
    else:
        where = f"{name} is not the same on all ranks after step {program.step - 1}"
        odd = f"(it is another one on rank {program.rank} than on the 2 others)"
        assert all(where in text and odd in text for text in told), program
        assert {step for _, _, step in found} == {program.step}


def train_healthily(optimizer: str, way: str, steps: int, seed: int) -> tuple[str, int]:
    """What a rank prints in steps without a fault, and how many of them a scaler skips."""
    program = Program(seed, way, optimizer, torch.float32, "", -1, 0, 0, 0.0, 0.0)
    training = Training(program, HVD_CHECK_NAN="1", HVD_CHECK_REPLICAS="10")
    if training.has_scaler:
        training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**115, growth_interval=5)
    torch.manual_seed(seed + hvd.rank())
    skipped = 0
    with redirect_stderr(io.StringIO()) as written:
        for step in range(steps):
            before = training.scaler.get_scale()
            training.run_step(_OVERFLOW if training.has_scaler and step % 7 == 3 else 1.0)
            skipped += training.scaler.get_scale() < before
    return written.getvalue(), skipped


@pytest.mark.parametrize("part", range(-(-HEALTHY_STEPS // 4 // MOST_STEPS)))
@pytest.mark.parametrize(
    ("optimizer", "way"),
    [("SGD", "plain"), ("Adam", "plain"), ("Adam", "scaler"), ("SGD", "Horovod's order")],
)
def test_a_healthy_training_raises_no_alarm(ranks: RankPool, optimizer: str, way: str, part: int) -> None:
    steps = min(MOST_STEPS, HEALTHY_STEPS // 4)
    found = ranks.run(train_healthily, optimizer, way, steps, part, size=2)
    assert [told for told, _ in found] == ["", ""]
    assert (found[0][1] > 0) == (way != "plain")
