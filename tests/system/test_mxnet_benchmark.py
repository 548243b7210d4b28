"""The benchmark of MXNet's step runs, in its smallest form; nobody looks at the figures.

It checks what it computes: afterwards the parameters of every way are compared.
"""

import json
from importlib.util import find_spec

import pytest

from tests.house.sources import ROOT
from tests.system.launcher import Launcher

SCRIPT = ROOT / "benchmarks" / "mxnet_step.py"
LIMIT_SECONDS = 110.0

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed: pip install '.[mxnet]'")


def test_the_step_is_measured_and_the_parameters_agree(hvdrun: Launcher) -> None:
    environment = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(hvdrun.directory / "inductor")}
    options = ("--model", "small", "--pairs", "2", "--most-pairs", "2", "--json", "figures.json")
    finished = hvdrun("-np", "2", "python", SCRIPT, *options, environment=environment, limit_seconds=LIMIT_SECONDS)
    assert (finished.returncode, finished.stderr) == (0, "")
    step, training = json.loads((hvdrun.directory / "figures.json").read_text(encoding="utf-8"))["tables"]
    assert step["title"] == "Gradients that are there, 10,200 parameters in 8 tensors, SGD, N=2"
    assert {line["name"] for line in step["lines"]} >= {
        "torch's grouped_allreduce_, MXNet's update",
        "MXNet, DistributedTrainer.step",
        "MXNet, Trainer.step of a DistributedOptimizer",
        "MXNet, no communication",
        "torch, DistributedOptimizer.step",
    }
    assert {line["name"] for line in training["lines"]} >= {"MXNet, DistributedTrainer.step", "MXNet, no communication"}
    peer = "torch's grouped_allreduce_, MXNet's update"
    assert [target["title"] for target in step["targets"]] == [
        f"MXNet, DistributedTrainer.step <= 1.10 x {peer} (median)"
    ]
