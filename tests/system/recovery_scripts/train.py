"""Trains a recipe and writes down every step: what it has used, and who took part.

With --steps there is no state: the job can only shrink. Else the training is an elastic function, which takes its
samples from an ElasticSampler, for some epochs (--epochs), and more where others are to be taken in before the end
(--entries), or until a file is there (--until).
"""

import argparse
import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import worker_runtime.torch as hvd
from tests.system.recovery_scripts.recipe import BATCH, EVERY, LONGEST, SAMPLES, SCALE, SHORTENING, Part, Recipe
from tests.system.recovery_scripts.stage import Stage
from worker_runtime.membership.runtime import RUNTIME

_SOME = (0, 2)  # the ranks of a process set, where there are more


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("features")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--kill", action="append", default=[])
    parser.add_argument("--children", type=int, default=0)
    parser.add_argument("--entries", type=int, default=1, help="continue with more epochs until there were so many")
    parser.add_argument("--until", type=Path, help="continue with more epochs until this file is there")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--signal", type=signal.Signals.__getitem__, default=signal.SIGKILL, help="how workers die")
    parser.add_argument("--every", type=int, default=3, help="steps between commits")
    return parser.parse_args()


class Trainer:
    """Steps all parts of a recipe."""

    def __init__(self, recipe: Recipe, stage: Stage) -> None:
        self.recipe = recipe
        self.stage = stage
        self._key, self._begins = b"", 0  # of the present members, and how often they have begun
        self._some: hvd.ProcessSet | None = None  # of them
        self.optimizers = [self._wrap(part) for part in recipe.parts]
        self._scaler = torch.amp.GradScaler(recipe.device, init_scale=SCALE) if "scaler" in recipe.features else None
        self.schedulers = [
            torch.optim.lr_scheduler.StepLR(optimizer, EVERY, SHORTENING)
            for optimizer in self.optimizers
            if "schedule" in recipe.features
        ]

    def enter(self, step: int) -> bool:
        """A training begins, or begins again, at this step; whether others may have been taken in."""
        engine = RUNTIME.engine
        self._begins = self._begins + 1 if engine.key == self._key else 0
        self._key = engine.key
        self.stage.enter(engine.steps.original_rank, step)
        self.stage.note("enter", entry=self._entry, step=step, size=engine.size)
        is_in_sets = "sets" in self.recipe.features and engine.size > len(_SOME)
        self._some = hvd.add_process_set(_SOME) if is_in_sets else None
        return self._begins == 0

    @property
    def _entry(self) -> str:
        return f"{self._key.hex()}.{self._begins}"

    def train(self, step: int, samples: Sequence[Sequence[int]], epoch: int = 0) -> None:
        """Make one step with these samples, for each pass."""
        stage, entry = self.stage, self._entry
        stage.step = step
        stage.note("batch", entry=entry, step=step, epoch=epoch, samples=samples)
        self._use_set()
        members = []
        for part, optimizer in zip(self.recipe.parts, self.optimizers, strict=True):
            before = RUNTIME.engine.steps.completed[0]
            self._step(part, optimizer, samples)
            engine = RUNTIME.engine
            number, participants = engine.steps.completed
            members.append(participants if number > before else engine.steps.original_ranks)
        for scheduler in self.schedulers:
            scheduler.step()
        stage.note("step", entry=entry, step=step, members=members, digest=digest(self.recipe))
        stage.come_to("stepped")

    def join(self) -> None:
        """The end of an epoch: one rank has something left to do, and the others have nothing to give to it."""
        if "join" in self.recipe.features:
            if hvd.rank() == 0:
                assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="rest").tolist() == [1, 1]
            hvd.join()

    def _use_set(self) -> None:
        """As long as no member is lost, all members are distinguished from each other, and from those outside."""
        some = self._some
        if some is not None and some.included():
            own = functional.one_hot(torch.tensor(some.rank()), len(_SOME))
            total = hvd.allreduce(own, op=hvd.Sum, process_set=some)
            assert total.tolist() == [1] * len(_SOME), total

    def _step(self, part: Part, optimizer: torch.optim.Optimizer, samples: Sequence[Sequence[int]]) -> None:
        come_to, features = self.stage.come_to, self.recipe.features
        if "closure" in features:
            optimizer.step(lambda: self._differentiate(part, optimizer, samples))
            come_to("end")
            return
        self._differentiate(part, optimizer, samples)
        with ExitStack() as stack:
            if not part.is_adasum and "step" not in features:
                self._prepare(part, optimizer, stack)
            if self._scaler is None:
                optimizer.step()
            else:
                self._scaler.step(optimizer)
                self._scaler.update()
        come_to("end")

    def _prepare(self, part: Part, optimizer: Any, stack: ExitStack) -> None:
        """Average, unscale and clip before the step; a scaler averages by itself where it unscales."""
        come_to, features = self.stage.come_to, self.recipe.features
        if self._scaler is None or "synchronize" in features:
            optimizer.synchronize()
            stack.enter_context(optimizer.skip_synchronize())
        if self._scaler is not None:
            if "synchronize" in features:
                come_to("synchronized")
            self._scaler.unscale_(optimizer)
        come_to("between")
        if "clip" in features:
            torch.nn.utils.clip_grad_norm_(part.network.list_clipped(), LONGEST)
            come_to("clipped")

    def _differentiate(self, part: Part, optimizer: torch.optim.Optimizer, samples: Sequence[Sequence[int]]) -> Any:
        self.stage.come_to("compute")
        optimizer.zero_grad()
        for some in samples:
            loss = self.recipe.lose(part, some)
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.stage.come_to("reduction")
        return loss.detach()

    def _wrap(self, part: Part) -> torch.optim.Optimizer:
        features = self.recipe.features
        part.network.first.weight.register_hook(self._come_to_backward)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return hvd.DistributedOptimizer(
            part.make_optimizer(),
            part.network.named_parameters(),
            backward_passes_per_step=self.recipe.passes,
            op=hvd.Adasum if part.is_adasum else self.recipe.op,
            gradient_predivide_factor=4.0 if "predivide" in features else 1.0,
            groups=2 if "groups" in features else None,
            sparse_as_dense="dense" in features,
        )

    def _come_to_backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradients of the last layer are computed, and their reduction may have begun."""
        self.stage.come_to("backward")
        return gradient


def digest(recipe: Recipe) -> str:
    """Of all parameters, to the last bit."""
    data = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in recipe.list_parameters())
    return hashlib.sha256(data).hexdigest()


def batch_up(loader: Iterable[torch.Tensor], passes: int) -> Iterator[list[list[int]]]:
    """The samples of each step; the last one may have fewer passes."""
    gathered: list[list[int]] = []
    for samples in loader:
        gathered.append(samples.tolist())
        if len(gathered) == passes:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def make_function(trainer: Trainer, options: argparse.Namespace) -> Callable[[Any], None]:
    """The training as an elastic function."""

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.entries += trainer.enter(state.step)
        sampler = state.sampler
        if state.entries == options.entries and options.until is None:
            is_over = not len(sampler)  # the epoch; then there is one more, with those who have just come
            state.last = max(options.epochs - 1, state.epoch + is_over)
        while state.last is None or state.epoch <= state.last:
            loader: DataLoader[int] = DataLoader(
                range(SAMPLES),  # type: ignore[arg-type]  # torch asks for no more than len() and []
                batch_size=BATCH,
                sampler=sampler,
                num_workers=options.children,
                multiprocessing_context="fork" if options.children else None,
            )
            for samples in batch_up(loader, trainer.recipe.passes):
                for some in samples[:-1]:  # as a loop does that steps with every other batch
                    sampler.record_batch(state.step, len(some))
                trainer.train(state.step, samples, state.epoch)
                sampler.record_batch(state.step, len(samples[-1]))
                state.step += 1
                if state.step % options.every == 0:
                    state.commit()
            trainer.join()
            state.commit()  # where a rank was lost, this begins the function again, with what is left of the epoch
            if options.until is not None and is_there(options.until):
                state.last = state.epoch
            state.epoch += 1
            sampler.set_epoch(state.epoch)

    return train


def is_there(path: Path) -> bool:
    """Whether some rank sees this file; all answer alike."""
    return bool(hvd.allreduce(torch.tensor(int(path.exists())), op=hvd.Max, name="stop").item())


def choose_card() -> None:
    """Use the card of the local rank, and make this worker a host of its own for NCCL: cards may be shared."""
    os.environ |= {"NCCL_HOSTID": f"worker-{os.getpid()}", "NCCL_SOCKET_IFNAME": "lo"}
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())


def main(make_trainer: Callable[[Recipe, Stage], Trainer] = Trainer) -> None:
    """Train."""
    options = parse_arguments()
    torch.set_num_threads(1)
    stage = Stage(options.folder, options.kill, options.signal)
    hvd.init()
    if options.device == "cuda":
        choose_card()
    recipe = Recipe(options.features, options.device)
    trainer = make_trainer(recipe, stage)
    stage.note("ready")
    if options.epochs or options.until:
        named: dict[str, Any] = {f"model_{number}": part.network for number, part in enumerate(recipe.parts)}
        named |= {f"optimizer_{number}": optimizer for number, optimizer in enumerate(trainer.optimizers)}
        named |= {f"scheduler_{number}": scheduler for number, scheduler in enumerate(trainer.schedulers)}
        sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=3)
        state = hvd.elastic.TorchState(**named, sampler=sampler, step=0, epoch=0, entries=0, last=None)
        make_function(trainer, options)(state)
    else:
        trainer.enter(0)
        for step in range(options.steps):
            trainer.train(step, recipe.draw(RUNTIME.engine.steps.original_rank, step))
    torch.save(
        [parameter.detach().cpu() for parameter in recipe.list_parameters()],
        options.folder / f"{os.getpid()}.parameters",
    )
    stage.note("done", digest=digest(recipe), size=hvd.size(), rank=hvd.rank())
    hvd.shutdown()


if __name__ == "__main__":
    main()
