"""`--backend`: refused before a script runs where torch lacks it, and used where it has it. A stub is the UCC here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.system.launcher import Launcher
from tests.system.tables import rest_nightly

SCRIPT = """
print("the script runs", flush=True)
import torch
import worker_runtime.torch as hvd

hvd.init()
for dtype in (torch.float32, torch.float16):
    x = torch.full((100_000,), hvd.rank() + 1.0, dtype=dtype)
    print(hvd.rank(), hvd.allreduce(x, op=hvd.Sum).unique().tolist(), flush=True)
"""
# What registers the name "ucc" as soon as torch is imported, and moves tensors by gloo, or not at all.
PLUG_IN = """
import os
import torch.distributed as dist

class Spy:
    def __init__(self, group):
        self._group = group
    def __getattr__(self, name):
        return getattr(self._group, name)
    def allreduce(self, tensor, op):
        os.write(1, f"ucc has {tensor.dtype}\\n".encode())  # in one: torchrun gives its workers one pipe
        return self._group.allreduce(tensor, op)

def make(store, rank, size, timeout):
    gloo = dist.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return Spy(gloo(store, rank, size, options))

def register():
    dist.Backend.register_backend("ucc", make, devices=["cpu"])
"""
ENTRY_POINT = "[torch.backends]\nstub_ucc = stub_ucc:register\n"
METADATA = "Metadata-Version: 2.1\nName: stub-ucc\nVersion: 1\n"


@pytest.fixture
def script(hvdrun: Launcher) -> Path:
    """A script that says that it runs."""
    return hvdrun.write("train.py", SCRIPT)


@pytest.fixture
def plug_in(hvdrun: Launcher) -> dict[str, str]:
    """The variables by which the stub is found."""
    folder = hvdrun.directory / "plug-in"
    information = folder / "stub_ucc-1.dist-info"
    information.mkdir(parents=True)
    (folder / "stub_ucc.py").write_text(PLUG_IN)
    (information / "entry_points.txt").write_text(ENTRY_POINT)
    (information / "METADATA").write_text(METADATA)
    return {"PYTHONPATH": str(folder)}


FORKED = pytest.mark.parametrize("forks", rest_nightly([True, False]), ids=["forked", "executed"])


@FORKED
def test_a_missing_backend_is_refused_before_the_script_runs(hvdrun: Launcher, script: Path, *, forks: bool) -> None:
    if dist.is_ucc_available():
        pytest.skip("this torch has ucc")
    run = hvdrun("--backend", "ucc", "-np", "2", "python", script, forks=forks)
    assert (run.returncode, run.stdout) == (125, "")
    wished = r"hvdrun: the backend 'ucc', given with --backend or \$HVD_BACKEND, .*: "
    assert re.fullmatch(rf"{wished}torch \S+ has no UCC; .*USE_UCC.* NGC .*plug-in.*\.\n", run.stderr)


@pytest.mark.nightly
def test_init_refuses_a_missing_backend_where_a_shell_starts_the_script(hvdrun: Launcher, script: Path) -> None:
    if dist.is_ucc_available():
        pytest.skip("this torch has ucc")
    run = hvdrun("--backend", "ucc", "-np", "1", "sh", "-c", f"exec python {script}")
    assert run.returncode == 1
    assert "BackendRefusedError: Horovod initialization failed: the backend ucc cannot be used here" in run.stderr


def count_dtypes(text: str) -> tuple[int, int]:
    """How many allreduces of float32 and of float16 the stub has seen."""
    return text.count("ucc has torch.float32"), text.count("ucc has torch.float16")


@FORKED
def test_a_ucc_plug_in_runs_the_supported_collectives(
    hvdrun: Launcher, script: Path, plug_in: dict[str, str], *, forks: bool
) -> None:
    run = hvdrun("--backend", "ucc", "-np", "2", "python", script, environment=plug_in, forks=forks)
    assert run.returncode == 0, run.stderr
    assert all(run.stdout.count(f"[{rank}] {rank} [3.0]\n") == 2 for rank in range(2))
    assert count_dtypes(run.stdout) == (4, 0)  # of each rank the test of the new group, and the script's


@pytest.mark.nightly
def test_under_torchrun_a_variable_chooses_the_backend(hvdrun: Launcher, script: Path, plug_in: dict[str, str]) -> None:
    log = ["--log-dir", str(hvdrun.directory / "log")]  # torchrun leaves its folder behind
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *log, "--nproc-per-node", "2", str(script)],
        cwd=hvdrun.directory,
        env={**hvdrun.environment(), **plug_in, "HVD_BACKEND": "ucc"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert count_dtypes(run.stdout) == (4, 0)
