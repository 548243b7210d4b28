"""Scripts for other launchers under hvdrun, hvdrun's scripts under other launchers, and names that are the user's."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.launcher import Launcher
from tests.system.packages import IMPORTS_SECONDS, make_environment
from tests.system.tables import rest_nightly

PLAIN_TORCH = """
import os
import torch
import torch.distributed as dist

dist.init_process_group()
assert dist.is_torchelastic_launched()
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
node = os.environ["GROUP_RANK"]
print(dist.get_rank(), dist.get_world_size(), int(total), node, flush=True)
dist.destroy_process_group()
"""
OURS = """
import sys
import worker_runtime.torch as hvd

hvd.init()
numbers = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size(), hvd.allgather_object(hvd.rank()))
sys.stdout.write(" ".join(map(str, numbers)) + "\\n")  # in one write: torchrun lets its workers write as they like
"""
FOR_LIGHTNING = """
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[0].sum(1, keepdim=True))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = lightning.Trainer(accelerator="cpu", devices=1, num_nodes=2, strategy="ddp", max_epochs=4, **quiet)
model = Line()
trainer.fit(model, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8))
weights = trainer.strategy.all_gather(model.layer.weight)
assert torch.equal(weights[0], weights[1]), weights
print("trained", trainer.node_rank, trainer.global_rank, trainer.world_size, flush=True)
torch.distributed.destroy_process_group()  # Lightning leaves gloo's threads to race with the end of Python
"""
HOSTILE = """
import protos
assert protos.OWNER == "user"
import worker_runtime.torch as hvd

hvd.init()
hvd.barrier()
import rendezvous, tests
assert rendezvous.OWNER == tests.OWNER == "user"
hvd.shutdown()
hvd.init()
print(hvd.allgather_object(hvd.rank()))
"""


def test_a_script_written_for_torchrun_runs_unchanged(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", PLAIN_TORCH)
    finished = hvdrun("-np", "2", "-H", "localhost:1,127.0.0.1:1", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(line.partition("] ")[2] for line in finished.stdout.splitlines()) == ["0 2 3 0", "1 2 3 1"]


@pytest.mark.nightly
@pytest.mark.timeout(600)  # packages are installed, and imported
def test_lightning_trains_on_two_hosts(hvdrun: Launcher, tmp_path: Path) -> None:
    hvdrun.write("train.py", FOR_LIGHTNING)
    environment = {"PATH": make_environment(tmp_path, "lightning>=2,<3")}
    command = ("-np", "2", "-H", "localhost:1,127.0.0.1:1", "python", "train.py")
    finished = hvdrun(*command, environment=environment, limit_seconds=IMPORTS_SECONDS)
    assert finished.returncode == 0, finished.stderr
    trained = [line.partition("] ")[2] for line in finished.stdout.splitlines() if "trained" in line]
    assert sorted(trained) == ["trained 0 0 2", "trained 1 1 2"]


@pytest.mark.nightly
def test_our_script_runs_under_torchrun(hvdrun: Launcher) -> None:
    script = hvdrun.write("train.py", OURS)
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script],
        env={**hvdrun.environment(), "TMPDIR": str(hvdrun.directory)},  # torchrun leaves folders of its own there
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert sorted(run.stdout.splitlines()) == ["0 2 0 1 [0, 1]", "1 2 1 1 [0, 1]"]


@pytest.mark.parametrize("forks", rest_nightly([True, False]), ids=["forked", "executed"])
def test_folders_of_our_names_beside_the_script_are_the_user_s(hvdrun: Launcher, *, forks: bool) -> None:
    for name in ("protos", "rendezvous", "tests"):
        (hvdrun.directory / name).mkdir()
        (hvdrun.directory / name / "__init__.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    (hvdrun.directory / "protos" / "rendezvous_pb2.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    hvdrun.write("train.py", HOSTILE)
    environment = {"PYTHONPATH": str(hvdrun.directory)}
    finished = hvdrun("-np", "2", "python", "train.py", environment=environment, forks=forks)
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] [0, 1]", "[1] [0, 1]"]
