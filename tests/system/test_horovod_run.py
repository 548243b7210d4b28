"""Programs that start their own workers through `horovod.run()`: ignite, and scripts like Horovod's examples."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from hvdrun.shim.path import FOLDER
from tests.system.launcher import LIMIT_SECONDS, Launcher

pytestmark = pytest.mark.nightly
EXAMPLE = Path(__file__).parent / "horovod_scripts" / "num_proc.py"
needs_ignite = pytest.mark.skipif(
    find_spec("ignite") is None, reason="ignite is not installed: pip install '.[dev-torch]'"
)

# ignite calls the function with the local rank first.
TRAINS = """
import ignite.distributed as idist
import torch

def train(local_rank, factor, at=0):
    assert (idist.backend(), idist.model_name()) == ("horovod", "horovod-dist")
    rank, size = idist.get_rank(), idist.get_world_size()
    assert (local_rank, idist.get_nproc_per_node(), idist.get_nnodes(), idist.get_node_rank()) == (rank, 2, 1, 0)
    assert idist.all_reduce(torch.tensor([rank + 1.0])).item() == 3
    assert idist.all_reduce(rank + 1.0, op="MAX") == 2
    assert idist.all_gather(f"rank {rank}") == ["rank 0", "rank 1"]
    assert idist.all_gather(torch.tensor([rank]), group=idist.new_group([1])).tolist() == [rank]
    assert idist.broadcast("hello" if rank == 1 else None, src=1, safe_mode=True) == "hello"

    torch.manual_seed(rank)
    model = idist.auto_model(torch.nn.Linear(3, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in idist.auto_dataloader(torch.randn(8, 3), batch_size=4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    first, second = idist.all_gather(model.weight.detach())
    assert torch.equal(first, second), "the workers drifted apart"
    idist.barrier()
    print("rank", rank, "of", size, "trained", factor, at)
"""
SPAWN = """
import ignite.distributed as idist
from beside import train

if __name__ == "__main__":
    idist.spawn("horovod", train, args=(5,), kwargs_dict={"at": 1}, nproc_per_node=2)
"""
PARALLEL = f"""{TRAINS}
if __name__ == "__main__":
    with idist.Parallel(backend="horovod", nproc_per_node=2) as parallel:
        parallel.run(train, 5, at=1)
"""


def run(hvdrun: Launcher, *words: str | Path) -> list[str]:
    """Run a program with Python alone, to its good end; what its ranks have printed, sorted."""
    finished = subprocess.run(
        [sys.executable, *words],
        cwd=hvdrun.directory,
        env={**hvdrun.environment(), "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return sorted(finished.stdout.splitlines())


@needs_ignite
@pytest.mark.parametrize("program", [SPAWN, PARALLEL], ids=["spawn", "Parallel"])
def test_ignite_starts_two_workers_and_trains_on_them(hvdrun: Launcher, program: str) -> None:
    hvdrun.write("beside.py", TRAINS)
    hvdrun.write("main.py", program)
    assert run(hvdrun, "main.py") == [f"[{rank}] rank {rank} of 2 trained 5 1" for rank in range(2)]


def test_a_script_with_num_proc_trains_as_under_hvdrun(hvdrun: Launcher) -> None:
    finished = hvdrun("-np", "2", "python", EXAMPLE)
    assert (finished.returncode, finished.stderr) == (0, "")
    first, second = under_hvdrun = sorted(finished.stdout.splitlines())
    assert first.removeprefix("[0]") == second.removeprefix("[1]")
    assert "on 2 ranks" in first
    assert run(hvdrun, EXAMPLE, "--num-proc", "2") == under_hvdrun
