"""What this Python's workers can do."""

import json
import subprocess
import sys

import pytest

from tests.house.sources import ROOT
from worker_runtime.api.basics import nccl_built
from worker_runtime.build import MODULES, look


def test_the_found_features_agree_with_those_that_scripts_see() -> None:
    found = look()
    assert (found["PyTorch"], found["Gloo"], found["MPI"], found["NCCL"]) == (True, True, False, bool(nccl_built()))


@pytest.mark.parametrize("broken", MODULES.values())
def test_a_framework_that_cannot_be_imported_counts_as_missing(broken: str) -> None:
    program = f"import sys; sys.modules[{broken!r}] = None; from worker_runtime.build import main; main()"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{broken}: ModuleNotFoundError" in run.stderr
    found = json.loads(run.stdout)
    assert not found["MXNet"]
    assert found["PyTorch"] == found["Gloo"] == (broken != "torch")
