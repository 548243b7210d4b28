"""Programs as people write them for torchrun, killed twice at random, make the losses of a run without a fault.

There are two workers: the sum of more depends on where gloo and DDP put a number, to the last bit.
"""

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.system.launcher import Launcher
from tests.system.packages import IMPORTS_SECONDS, make_environment

STEPS = 14
# Each script calls `step_is_done` after each step, and prints nothing itself.
COMMON = """
import os, signal, sys, time
import torch
import torch.distributed as dist

VICTIMS = [tuple(map(int, word.split(","))) for word in sys.argv[1:]]  # (rank, step) of each round
ROUND = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def step_is_done(step, loss):
    if int(os.environ["RANK"]) == 0:
        print(f"step {step} loss {float(loss):.9g}", flush=True)
    if ROUND < len(VICTIMS) and VICTIMS[ROUND] == (int(os.environ["RANK"]), step):
        os.kill(os.getpid(), signal.SIGKILL)

def make_batch(step):
    generator = torch.Generator().manual_seed(1000 * step + int(os.environ["RANK"]))
    return torch.randn(8, 6, generator=generator)
"""
FSDP = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
for layer in model:
    if list(layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
first = 0
saved = sorted((path for path in os.listdir(".") if path.startswith("step.")), key=lambda path: int(path[5:]))
if saved:
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=saved[-1])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    first = int(saved[-1][5:])
for step in range(first, STEPS):
    optimizer.zero_grad()
    loss = model(make_batch(step)).square().mean()
    loss.backward()
    optimizer.step()
    if (step + 1) % 3 == 0:
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id="writing")
        if dist.get_rank() == 0:
            os.rename("writing", f"step.{step + 1}")
        dist.barrier()
    step_is_done(step, loss.detach())
model = ddp = optimizer = None  # torch may crash or hang where a process group ends before its DDP
dist.barrier()
dist.destroy_process_group()
"""
ACCUMULATING = """
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.Adam(ddp.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
first = 0
if os.path.exists("checkpoint"):
    saved = torch.load("checkpoint")
    first = saved.pop("step")
    for name, state in saved.items():
        parts[name].load_state_dict(state)
for step in range(first, STEPS):
    optimizer.zero_grad()
    batch = make_batch(step)
    with ddp.no_sync():
        ddp(batch[:4]).square().mean().backward()
    loss = ddp(batch[4:]).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if dist.get_rank() == 0 and (step + 1) % 3 == 0:
        torch.save({**{name: part.state_dict() for name, part in parts.items()}, "step": step + 1}, "writing")
        os.rename("writing", "checkpoint")
    step_is_done(step, loss.detach())
model = ddp = optimizer = None  # torch may crash or hang where a process group ends before its DDP
dist.barrier()
dist.destroy_process_group()
"""
IGNITE = """
from pathlib import Path
import ignite.distributed as idist
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from torch.utils.data import TensorDataset

def train(local_rank):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    loader = idist.auto_dataloader(TensorDataset(torch.randn(112, 6)), batch_size=16, shuffle=True)
    model = idist.auto_model(net)
    optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), lr=0.05))

    def step(engine, batch):
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    trainer = Engine(step)
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: loader.sampler.set_epoch(trainer.state.epoch))
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: step_is_done(trainer.state.iteration - 1, trainer.state.output)
    )
    parts = {"model": model, "optimizer": optimizer, "trainer": trainer}
    epoch = {"global_step_transform": lambda *_: trainer.state.epoch}
    saves = Checkpoint(parts, DiskSaver("checkpoints", require_empty=False), n_saved=2, **epoch)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saves)
    saved = sorted(Path("checkpoints").glob("checkpoint_*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    if saved:
        Checkpoint.load_objects(parts, saved[-1])
    trainer.run(loader, max_epochs=2)

with idist.Parallel(backend="gloo") as parallel:
    parallel.run(train)
"""
LIGHTNING = """
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def train_dataloader(self):
        sampler = StatefulDistributedSampler(data, seed=1)
        sampler.set_epoch(self.trainer.current_epoch)
        return StatefulDataLoader(data, batch_size=4, sampler=sampler, num_workers=1)

    def on_train_batch_end(self, outputs, batch, index):
        if index % 2:
            step_is_done(self.trainer.global_step - 1, outputs["loss"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)

class Saves(ModelCheckpoint):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        accumulating = (index + 1) % trainer.accumulate_grad_batches
        if not trainer.is_last_batch and not accumulating:
            super().on_train_batch_end(trainer, module, outputs, batch, index)

lightning.seed_everything(1)
data = TensorDataset(torch.randn(96, 6))  # a save of each third step would be one of the last step of an epoch
saves = Saves(dirpath="checkpoints", every_n_train_steps=3, save_last=True)
quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
shape = {"accelerator": "cpu", "devices": 2, "num_nodes": 1, "strategy": "ddp", "use_distributed_sampler": False}
shape["accumulate_grad_batches"] = 2
trainer = lightning.Trainer(**shape, max_steps=STEPS, callbacks=[saves], **quiet)
trainer.fit(Net(), ckpt_path="last")
dist.destroy_process_group()
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

loading = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(cpu=True, dataloader_config=loading, gradient_accumulation_steps=2)
set_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.5)
loader = DataLoader(TensorDataset(torch.randn(96, 6)), batch_size=8, shuffle=True)
net, optimizer, scheduler, loader = accelerator.prepare(net, optimizer, scheduler, loader)
step = 0
saved = sorted((path for path in os.listdir(".") if path.startswith("step.")), key=lambda path: int(path[5:]))
if saved:
    accelerator.load_state(saved[-1])
    step = int(saved[-1][5:])
while step < STEPS:
    epoch, done = divmod(step, len(loader))
    loader.set_epoch(epoch)
    for (batch,) in accelerator.skip_first_batches(loader, done):
        with accelerator.accumulate(net):
            loss = net(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        step_is_done(step, loss.detach())  # before the save: rank 1 need not wait for rank 0 in the next step
        step += 1
        if accelerator.sync_gradients:
            accelerator.save_state("writing")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                os.rename("writing", f"step.{step}")
            accelerator.wait_for_everyone()
        if step == STEPS:
            break
accelerator.end_training()
"""
FABRIC = """
import lightning
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

fabric = lightning.Fabric(accelerator="cpu", devices=2, num_nodes=1, strategy="ddp")
fabric.launch()
fabric.seed_everything(1)
data = TensorDataset(torch.randn(96, 6))
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.05))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=8, sampler=sampler)
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0}
if os.path.exists("checkpoint"):
    fabric.load("checkpoint", state)
while state["step"] < STEPS:
    epoch, done = divmod(state["step"], len(loader))
    sampler.set_epoch(epoch)
    for (batch,) in [*loader][done:]:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        fabric.backward(loss)
        optimizer.step()
        scheduler.step()
        state["step"] += 1
        if state["step"] % 3 == 0:
            fabric.save("writing", state)
            if fabric.is_global_zero:
                os.rename("writing", "checkpoint")
            fabric.barrier()
        step_is_done(state["step"] - 1, loss.detach())
        if state["step"] == STEPS:
            break
fabric.barrier()
dist.destroy_process_group()
"""
TRAINER = """
from pathlib import Path
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))

    def forward(self, x):
        return {"loss": self.net(x).square().mean()}

class Noting(Trainer):
    def training_step(self, *words, **named):
        self.step_loss = super().training_step(*words, **named)
        return self.step_loss

class Note(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        step_is_done(state.global_step - 1, trainer.step_loss)

set_seed(1)
data = [{"x": torch.randn(6)} for _ in range(96)]
quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "remove_unused_columns": False}
steps = {"max_steps": STEPS, "save_steps": 3, "per_device_train_batch_size": 8, "learning_rate": 0.05}
arguments = TrainingArguments("checkpoints", use_cpu=True, **steps, **quiet)
complete = [path.parent for path in Path("checkpoints").glob("checkpoint-*/trainer_state.json")]
newest = max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
trainer = Noting(Net(), arguments, train_dataset=data, callbacks=[Note()])
trainer.train(resume_from_checkpoint=str(newest) if newest else None)
dist.destroy_process_group()
"""
PROGRAMS = {
    "fully_shard and torch.distributed.checkpoint": FSDP,
    "DDP that accumulates": ACCUMULATING,
    "ignite": IGNITE,
}
FRAMEWORKS = {"Lightning": LIGHTNING, "Fabric": FABRIC, "accelerate": ACCELERATE, "Trainer": TRAINER}
PACKAGES = ("lightning>=2.6,<3", "accelerate>=1,<2", "transformers>=5,<6", "torchdata>=0.11,<1")


def read_losses(output: str) -> list[tuple[int, str]]:
    return [(int(step), loss) for step, loss in re.findall(r"step (\d+) loss (\S+)", output)]


@pytest.fixture(scope="module")
def frameworks() -> Iterator[dict[str, str]]:
    """The variables with which `python` has Lightning, accelerate and Trainer."""
    with TemporaryDirectory(prefix="hvd-frameworks-") as folder:
        yield {"PATH": make_environment(Path(folder), *PACKAGES)}


@pytest.mark.nightly
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_losses_are_those_of_a_run_without_a_fault(hvdrun: Launcher, program: str) -> None:
    compare_with_undisturbed(hvdrun, PROGRAMS[program], {})


@pytest.mark.nightly
@pytest.mark.timeout(600)  # packages are installed, and each start imports them
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_s_losses_are_those_of_a_run_without_a_fault(
    hvdrun: Launcher, frameworks: dict[str, str], framework: str
) -> None:
    compare_with_undisturbed(hvdrun, FRAMEWORKS[framework], frameworks)


def compare_with_undisturbed(hvdrun: Launcher, program: str, environment: dict[str, str]) -> None:
    hvdrun.write("train.py", COMMON + f"STEPS = {STEPS}\n" + program)
    undisturbed = hvdrun("-np", "2", "python", "train.py", environment=environment, limit_seconds=IMPORTS_SECONDS)
    expected = dict(read_losses(undisturbed.stdout))
    assert sorted(expected) == list(range(STEPS)), undisturbed.stderr
    for path in hvdrun.directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "train.py":
            path.unlink()

    # The first loss is in the first step of the second epoch of a framework, the second one after a save within it.
    victims = [(random.randrange(2), 6), (random.randrange(2), random.randrange(9, 11))]  # noqa: S311 - no secret
    words = [f"{rank},{step}" for rank, step in victims]
    killed = ("-np", "2", "--max-restarts", "2", "python", "train.py", *words)
    finished = hvdrun(*killed, environment=environment, limit_seconds=IMPORTS_SECONDS)
    for path in hvdrun.watch.temporary.glob("pymp-*"):  # of a loader's processes that were killed: Python's own
        shutil.rmtree(path)
    assert finished.returncode == 0, (victims, finished.stderr)
    losses = read_losses(finished.stdout)
    assert [(step, loss) for step, loss in losses if expected[step] != loss] == [], victims
    assert sorted({step for step, _ in losses}) == list(range(STEPS))
