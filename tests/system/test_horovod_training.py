"""Scripts in the form of Horovod's own examples train, begin again from a checkpoint, and run as elastic functions.

The scripts lie in `horovod_scripts`; the data are scikit-learn's handwritten digits. That several workers come to what
one process comes to is in `tests/worker_runtime/torch` and `test_random_trainings.py`.
"""

import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.system.launcher import Launcher

SCRIPTS = Path(__file__).parent / "horovod_scripts"
SIZES = [2, 3] if "HVDRUN_SOAK_RUNS" in os.environ else [3]
TEST_SAMPLES = 360  # of 1,797

Said = list[list[str]]  # the lines of each rank


@pytest.fixture
def data(hvdrun: Launcher) -> Path:
    """Images of shape (n, 1, 8, 8) and labels, for training and for the test."""
    digits = importlib.import_module("sklearn.datasets").load_digits()  # a second, in a nightly test alone
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    path = hvdrun.directory / "digits.pt"
    torch.save((images[train], labels[train], images[test], labels[test]), path)
    return path


def run(hvdrun: Launcher, size: int, script: str, *options: str | Path) -> Said:
    """Run a script to its good end; what each rank has printed."""
    command = ("python", SCRIPTS / script, *options)
    finished = hvdrun("-np", str(size), *command, limit_seconds=200)
    assert (finished.returncode, finished.stderr) == (0, "")
    said: Said = [[] for _ in range(size)]
    for line in finished.stdout.splitlines():
        mark, _, text = line.partition(" ")
        said[int(mark.strip("[]"))].append(text)
    return said


def read_last(pattern: str, lines: Sequence[str]) -> float:
    """The number in the last line of such words."""
    found = re.findall(pattern, "\n".join(lines))
    assert found, lines
    return float(found[-1])


def read_parameters(said: Said) -> str:
    """The digest of the parameters, which are the same on all ranks to the last bit."""
    (digest,) = {lines[-1] for lines in said}
    assert re.fullmatch(r"parameters [0-9a-f]{64}", digest)
    return digest


@pytest.mark.nightly
@pytest.mark.parametrize("size", SIZES)
def test_a_resumed_training_ends_as_the_one_that_went_through(hvdrun: Launcher, data: Path, size: int) -> None:
    through = run(hvdrun, size, "resume.py", data)
    assert read_last(r"Epoch #3: ([\d.]+)%", through[0]) >= 85

    (hvdrun.directory / "checkpoint-3.pth.tar").unlink()
    resumed = run(hvdrun, size, "resume.py", data)
    assert [line.partition(":")[0] for line in resumed[0][:-1]] == ["Epoch #3"]
    assert read_parameters(resumed) == read_parameters(through)


@pytest.mark.parametrize("size", SIZES)
def test_elastic_run_trains_in_a_job_that_nothing_happens_to(hvdrun: Launcher, data: Path, size: int) -> None:
    said = run(hvdrun, size, "elastic.py", "--data", data)
    assert read_last(r"Accuracy: ([\d.]+)%", said[0]) >= 85
    read_parameters(said)
