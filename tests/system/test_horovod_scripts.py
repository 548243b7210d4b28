"""Scripts that say `import horovod`: which Horovod they reach, whichever way their workers come to life."""

import json
import os
import venv
from pathlib import Path

import pytest

from hvdrun.shim.path import FOLDER
from tests.system.launcher import Launcher
from tests.system.tables import rest_nightly

OURS, THEIRS = "0.28.1", "0.19.5"

TRAINS = """
import torch
import horovod.torch as hvd
from horovod.torch.mpi_ops import Average, allreduce, rank, size
from horovod.common.util import num_rank_is_power_2

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for step in range(2):
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
weight = model.weight.detach().flatten()
assert torch.equal(allreduce(weight, op=hvd.Min), allreduce(weight, op=hvd.Max)), "the workers drifted apart"
print(rank(), "of", size(), "trained", num_rank_is_power_2(size()), hvd.DistributedOptimizer.__name__)
"""
ASKS = """
import json, os, subprocess, sys

CHILD = "import horovod; print(horovod.__version__)"
child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
reported = {"search": os.environ.get("PYTHONPATH"), "child": (child.stdout or child.stderr).split("\\n")[-2]}
try:
    import horovod
    reported["version"] = horovod.__version__
except ImportError as error:
    reported["version"] = str(error)
print(json.dumps(reported))
"""
WAYS_OF_STARTING = {
    "forked": (True, ("python", "train.py")),
    "executed": (False, ("python", "train.py")),
    "by a shell": (True, ("sh", "-c", "python train.py")),
}


@pytest.fixture
def installed(hvdrun: Launcher) -> Path:
    """A folder with another Horovod."""
    return put_horovod(hvdrun.directory / "installed")


def put_horovod(folder: Path) -> Path:
    """Install another one into a folder."""
    package = folder / "horovod" / "torch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text(f"__version__ = '{THEIRS}'\n", encoding="utf-8")
    (package / "__init__.py").touch()
    return folder


def ask(hvdrun: Launcher, *words: str | Path, own: str | None = None, forks: bool = False) -> dict[str, str | None]:
    """What the only worker of a job prints."""
    hvdrun.write("train.py", ASKS)
    finished = hvdrun("-np", "1", *words, environment={} if own is None else {"PYTHONPATH": own}, forks=forks)
    assert (finished.returncode, finished.stderr) == (0, "")
    reported: dict[str, str | None] = json.loads(finished.stdout.removeprefix("[0] "))
    return reported


@pytest.mark.parametrize("way", rest_nightly(WAYS_OF_STARTING))
def test_a_script_written_for_horovod_trains(hvdrun: Launcher, way: str) -> None:
    forks, command = WAYS_OF_STARTING[way]
    hvdrun.write("train.py", TRAINS)
    finished = hvdrun("-np", "2", *command, forks=forks)
    assert (finished.returncode, finished.stderr) == (0, "")
    reported = [f"[{rank}] {rank} of 2 trained True DistributedOptimizer" for rank in range(2)]
    assert sorted(finished.stdout.splitlines()) == reported


@pytest.mark.parametrize(
    ("mode", "way"),
    rest_nightly(
        [
            ("auto", "executed"),
            ("on", "executed"),
            ("off", "executed"),
            ("auto", "forked"),
            ("on", "forked"),
            ("on", "by a shell"),
        ],
        first=3,
    ),
)
def test_where_horovod_is_on_the_users_path_the_option_decides(
    hvdrun: Launcher, installed: Path, mode: str, way: str
) -> None:
    forks, command = WAYS_OF_STARTING[way]
    found = OURS if mode == "on" else THEIRS
    own = f"{installed}{os.pathsep}/nowhere"
    reported = ask(hvdrun, "--horovod-shim", mode, *command, own=own, forks=forks)
    assert (reported["version"], reported["child"]) == (found, found)
    assert reported["search"] == (own if mode == "off" else f"{FOLDER}{os.pathsep}{own}")


@pytest.mark.parametrize("way", rest_nightly(WAYS_OF_STARTING))
def test_without_an_installed_horovod_ours_stands_in(hvdrun: Launcher, way: str) -> None:
    forks, command = WAYS_OF_STARTING[way]
    assert ask(hvdrun, *command, forks=forks) == {"version": OURS, "child": OURS, "search": str(FOLDER)}


def test_shim_off_serves_no_horovod(hvdrun: Launcher) -> None:
    reported = ask(hvdrun, "--horovod-shim", "off", "python", "train.py")
    nothing = "No module named 'horovod'"
    assert reported == {"version": nothing, "child": f"ModuleNotFoundError: {nothing}", "search": None}


@pytest.mark.nightly
def test_the_workers_python_counts_not_hvdruns(hvdrun: Launcher) -> None:
    venv.create(hvdrun.directory / "other")
    python = hvdrun.directory / "other" / "bin" / "python"
    assert [ask(hvdrun, python, "train.py")[key] for key in ("version", "child")] == [OURS, OURS]
    finished = hvdrun("-np", "1", python, "-c", "import horovod.torch")
    assert f"{python} has no hvdrun, which serves it: install hvdrun there" in finished.stderr

    (site,) = (hvdrun.directory / "other" / "lib").glob("python*/site-packages")
    put_horovod(site)
    assert [ask(hvdrun, python, "train.py")[key] for key in ("version", "child")] == [THEIRS, THEIRS]


def test_a_horovod_beside_the_script_is_the_scripts_own(hvdrun: Launcher) -> None:
    put_horovod(hvdrun.directory)
    reported = ask(hvdrun, "--horovod-shim", "on", "python", "train.py")
    assert reported["version"] == THEIRS


@pytest.mark.nightly
@pytest.mark.parametrize(("inner", "found"), [("off", "No module named 'horovod'"), ("auto", OURS)])
def test_a_job_within_a_job_decides_for_itself(hvdrun: Launcher, inner: str, found: str) -> None:
    nested = ("hvdrun", "-np", "1", "--no-prefix", "--horovod-shim", inner, "python", "train.py")
    reported = ask(hvdrun, "--horovod-shim", "on", *nested)
    assert (reported["version"], reported["search"]) == (found, None if inner == "off" else str(FOLDER))


def test_the_error_of_an_unserved_module_names_the_served_ones(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", "import horovod.tensorflow as hvd\n")
    finished = hvdrun("-np", "1", "python", "train.py", forks=False)
    assert finished.returncode == 1
    assert "Error: horovod.tensorflow is not served: the horovod of this process is hvdrun's" in finished.stderr
    assert "which has horovod.torch, horovod.mxnet, horovod.common and horovod.run()" in finished.stderr
