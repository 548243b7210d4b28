"""The examples print in one line where they train, and train there; `make nightly` shows it on the CPU."""

import re

import pytest
import torch

from tests.house.sources import ROOT
from tests.system.launcher import Launcher

pytest.importorskip("sklearn")

EXAMPLES = ROOT / "examples"
LIMIT_SECONDS = 110
SHORT = ("--epochs", "1")
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "torch_one_line.py": ((), (), 2),
    "torch_elastic_one_line.py": (("--min-np", "1"), (), 2),
    "torch_digits.py": ((), SHORT, 2),
    "torch_digits_elastic.py": (("--min-np", "1"), SHORT, 2),
    "torch_worker_loss.py": (("--min-np", "2"), (), 3),
}
DEVICES = [
    pytest.param("cpu, gloo", marks=pytest.mark.nightly, id="cpu"),
    pytest.param(
        "cuda:0 [^,;]+, gloo",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
        id="gpu",
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_prints_its_device_once_and_trains(hvdrun: Launcher, name: str, device: str) -> None:
    launch, train, size = COMMANDS[name]
    options = ("-np", str(size), "--backend", "gloo", *launch)
    environment = {"OMP_NUM_THREADS": "1"}
    finished = hvdrun(*options, "python", EXAMPLES / name, *train, environment=environment, limit_seconds=LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    reported, *rest = finished.stdout.splitlines()
    assert re.fullmatch(rf"\[0\] {device}; {size} workers on 1 host", reported)
    assert rest
    assert not any("on 1 host" in line for line in rest)
