"""The recipes of the docs for scripts that write into HVD_SNAPSHOT_DIR, in whole scripts."""

import re
from textwrap import indent

from tests.documentation import ROOT, find_blocks
from tests.system.test_restarted_programs import COMMON, read_losses

STEPS = 14
_PAGE = (ROOT / "docs" / "tutorials" / "ddp.md").read_text(encoding="utf-8")
_RARELY = ("1000", "5")  # steps, from one checkpoint on a disk to the next


def find_recipe(word: str) -> str:
    """The block of the page that has this word, for few steps."""
    (block,) = (block for block in find_blocks(_PAGE, "py") if word in block)
    return block.replace(*_RARELY)


_BEGIN = f"""{COMMON}
STEPS = {STEPS}
import shutil, tempfile
from pathlib import Path
"""
LIGHTNING = f"""{_BEGIN}
import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))

    def on_train_start(self):
        print("begins", self.trainer.global_step, "from", self.trainer.ckpt_path, flush=True)

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

{indent(find_recipe("StatefulDataLoader"), "    ")}
    def on_train_batch_end(self, outputs, batch, index):
        step_is_done(self.trainer.global_step - 1, outputs["loss"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.05)

lightning.seed_everything(1)
data = TensorDataset(torch.randn(96, 6))
model = Net()
options = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
options |= {{"accelerator": "cpu", "devices": 2, "num_nodes": 1, "strategy": "ddp", "max_steps": STEPS}}
options |= {{"use_distributed_sampler": False}}
{find_recipe("ModelCheckpoint")}
dist.destroy_process_group()
"""
TRAINER = f"""{_BEGIN}
import transformers
from transformers import TrainerCallback, TrainingArguments, set_seed

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))

    def forward(self, x):
        return {{"loss": self.net(x).square().mean()}}

class Trainer(transformers.Trainer):
    def train(self, resume_from_checkpoint):
        first = int(resume_from_checkpoint.rpartition("-")[2]) if resume_from_checkpoint else 0
        print("begins", first, "from", resume_from_checkpoint, flush=True)
        self.add_callback(Note())
        return super().train(resume_from_checkpoint=resume_from_checkpoint)

    def training_step(self, *words, **named):
        self.step_loss = super().training_step(*words, **named)
        return self.step_loss

class Note(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if state.global_step and trainer.step_loss is not None:  # the last one is done, and saved
            step_is_done(state.global_step - 1, trainer.step_loss)

    def on_train_end(self, args, state, control, **_):
        step_is_done(state.global_step - 1, trainer.step_loss)

Trainer.step_loss = None
set_seed(1)
model, data = Net(), [{{"x": torch.randn(6)}} for _ in range(80)]
options = {{"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "remove_unused_columns": False}}
options |= {{"use_cpu": True, "max_steps": STEPS, "per_device_train_batch_size": 8, "learning_rate": 0.05}}
{find_recipe("TrainerCallback")}
dist.destroy_process_group()
"""
DCP = f"""{_BEGIN}
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
folder = os.environ.get("HVD_SNAPSHOT_DIR", "checkpoints")
places = dict.fromkeys((folder, "checkpoints"))
first, newest = 0, None
for path in (path for place in places for path in Path(place).glob("step-*")):
    if int(path.name[5:]) > first:
        first, newest = int(path.name[5:]), path
print("begins", first, "from", newest, flush=True)
if newest:
    weights, moments = get_state_dict(model, optimizer)
    dcp.load({{"model": weights, "optimizer": moments}}, checkpoint_id=newest)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
for step in range(first, STEPS):
    optimizer.zero_grad()
    loss = model(make_batch(step)).square().mean()
    loss.backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    for place in places:
        if place != folder and (step + 1) % 5:
            continue
        writing = Path(place, "writing")
        dcp.save({{"model": weights, "optimizer": moments}}, checkpoint_id=writing)
        if dist.get_rank() == 0:
            shutil.rmtree(Path(place, f"step-{{step}}"), ignore_errors=True)
            writing.rename(Path(place, f"step-{{step + 1}}"))
        dist.barrier()
    step_is_done(step, loss.detach())
model = ddp = optimizer = None  # torch may crash or hang where a process group ends before its DDP
dist.barrier()
dist.destroy_process_group()
"""
# Each prints from which step and checkpoint it begins.
RECIPES = {"torch.distributed.checkpoint": DCP, "Lightning": LIGHTNING, "Trainer": TRAINER}


def check_losses(undisturbed: str, output: str) -> None:
    """A job has the losses of one without a fault; a worker that is killed may not say that of its last step."""
    expected = dict(read_losses(undisturbed))
    assert sorted(expected) == list(range(STEPS))
    losses = read_losses(output)
    assert [(step, loss) for step, loss in losses if expected[step] != loss] == []
    assert losses[-1][0] == STEPS - 1


def read_begins(output: str) -> list[tuple[int, str]]:
    """From which step and checkpoint rank 0 of each round begins."""
    return [(int(step), path) for step, path in re.findall(r"\[0[^]]*\] begins (\d+) from (\S+)", output)]
