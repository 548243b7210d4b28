"""Scripts in the form of Horovod's own examples train, and what comes out is what one process would compute.

The scripts lie in `horovod_scripts`; the data are scikit-learn's handwritten digits.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # scikit-learn has no types

from tests.system.adasum import combine_by_adasum
from tests.system.launcher import Launcher

SCRIPTS = Path(__file__).parent / "horovod_scripts"
SIZES = [2, 3] if "HVDRUN_SOAK_RUNS" in os.environ else [3]
TEST_SAMPLES = 360  # of 1,797

# How far the parameters of several workers may be from those of one process. Where nothing is named, all is computed
# in float64, and only the order of the additions differs.
ROUNDING = 1e-12
TOLERANCES = {"fp16": 1e-3, "bf16": 1e-2}

Said = list[list[str]]  # the lines of each rank


@pytest.fixture
def environment(hvdrun: Launcher) -> dict[str, str]:
    """Torch's compiler makes a folder as soon as it is imported, and leaves it."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(hvdrun.directory / "inductor")}


@pytest.fixture
def data(hvdrun: Launcher) -> Path:
    """Images of shape (n, 1, 8, 8) and labels, for training and for the test."""
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    path = hvdrun.directory / "digits.pt"
    torch.save((images[train], labels[train], images[test], labels[test]), path)
    return path


def run(hvdrun: Launcher, environment: dict[str, str], size: int, script: str, *options: str | Path) -> Said:
    """Run a script to its good end; what each rank has printed."""
    command = ("python", SCRIPTS / script, *options)
    finished = hvdrun("-np", str(size), *command, environment=environment, limit_seconds=110)
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


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (3, ""),
        (2, "--fp16-allreduce --gradient-predivide-factor 2"),
        (2, "--use-mixed-precision"),
        (3, "--use-adasum --lr 0.1"),  # which is not scaled by the number of workers
    ],
)
def test_the_digits_are_learnt(
    hvdrun: Launcher, environment: dict[str, str], data: Path, size: int, options: str
) -> None:
    said = run(hvdrun, environment, size, "mnist.py", "--data", data, *options.split())
    assert read_last(r"Test set: Average loss: .*, Accuracy: ([\d.]+)%", said[0]) >= 80
    read_parameters(said)


def test_other_processes_may_load_the_data(hvdrun: Launcher, environment: dict[str, str], data: Path) -> None:
    said = run(hvdrun, environment, 2, "mnist.py", "--data", data, "--num-workers", "1", "--epochs", "1")
    read_parameters(said)


@pytest.mark.parametrize("size", SIZES)
def test_a_resumed_training_ends_as_the_one_that_went_through(
    hvdrun: Launcher, environment: dict[str, str], data: Path, size: int
) -> None:
    script = ("imagenet_resnet50.py", "--data", data, "--batches-per-allreduce", "3")
    through = run(hvdrun, environment, size, *script)
    assert read_last(r"Validate Epoch #3: loss .*, ([\d.]+)%", through[0]) >= 85

    (hvdrun.directory / "checkpoint-3.pth.tar").unlink()
    resumed = run(hvdrun, environment, size, *script)
    assert [line.partition(":")[0] for line in resumed[0][:-1]] == ["Train Epoch #3", "Validate Epoch #3"]
    assert read_parameters(resumed) == read_parameters(through)


def test_the_benchmark_tells_images_per_second(hvdrun: Launcher, environment: dict[str, str]) -> None:
    said = run(hvdrun, environment, 2, "synthetic_benchmark.py")
    assert read_last(r"Total img/sec on 2 .PU\(s\): ([\d.]+)", said[0]) > 0


@pytest.mark.parametrize("size", SIZES)
def test_elastic_run_trains_in_a_job_that_nothing_happens_to(
    hvdrun: Launcher, environment: dict[str, str], data: Path, size: int
) -> None:
    said = run(hvdrun, environment, size, "elastic.py", "--data", data)
    assert read_last(r"Accuracy: ([\d.]+)%", said[0]) >= 85
    read_parameters(said)


@pytest.mark.parametrize("size", SIZES)
def test_adasum_is_what_its_paper_says(hvdrun: Launcher, environment: dict[str, str], size: int) -> None:
    said = run(hvdrun, environment, size, "adasum_small_model.py")
    told = json.loads(said[0][-1])
    replicas = [np.array(weights) for weights in told["weights"]]
    assert all((replica == replicas[0]).all() for replica in replicas)
    assert np.abs(replicas[0] - step_by_adasum(np.array(told["start"]), size, told["steps"])).max() < ROUNDING


def step_by_adasum(weights: NDArray[np.float64], size: int, steps: int) -> NDArray[np.float64]:
    """The script's training in NumPy: each rank makes its own step, with its own momentum; the steps are combined."""
    draws = [torch.Generator().manual_seed(rank) for rank in range(size)]
    xs = [torch.randn(steps, 8, 3, generator=draw, dtype=torch.float64).numpy() for draw in draws]
    ys = [torch.randn(steps, 8, 2, generator=draw, dtype=torch.float64).numpy() for draw in draws]
    momenta = [np.zeros_like(weights) for _ in range(size)]
    for step in range(steps):
        deltas = []
        for rank in range(size):
            x, y = xs[rank][step], ys[rank][step]
            gradient = 2 * (x @ weights.T - y).T @ x / y.size
            momenta[rank] = 0.5 * momenta[rank] + gradient
            deltas.append(-0.1 * momenta[rank])
        weights = weights + combine_by_adasum(deltas)
    return weights


@pytest.mark.parametrize("size", SIZES)
def test_ranks_with_fewer_batches_join(hvdrun: Launcher, environment: dict[str, str], size: int) -> None:
    said = run(hvdrun, environment, size, "uneven.py")
    told = json.loads(said[0][-1])
    assert told["last"] == [size - 1] * 3  # the rank with the most batches, in each epoch
    assert told["together"] == [told["together"][0]] * size
    assert np.abs(np.array(told["together"][0]) - np.array(told["alone"])).max() < ROUNDING


@pytest.mark.parametrize("size", SIZES)
def test_several_workers_compute_what_one_does_with_all_the_data(
    hvdrun: Launcher, environment: dict[str, str], size: int
) -> None:
    results = {}
    for workers in (1, size):
        path = hvdrun.directory / f"{workers}.pt"
        assert run(hvdrun, environment, workers, "agreement.py", path) == [[]] * workers
        results[workers] = torch.load(path)
    assert len(results[1]) == 20
    distances = {way: (results[size][way] - alone).abs().max().item() for way, alone in results[1].items()}
    far = {way: distance for way, distance in distances.items() if not distance <= TOLERANCES.get(way, ROUNDING)}
    assert far == {}
