"""Workers are lost while others train on GPUs, all on one where there are no more: no step is lost or made twice.

The trainings are those of `test_recovery.py`, with a place of death for each thing that NCCL may be doing. `make
nightly` plays all of them on the CPU.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.house.gpu import EVIDENCE
from tests.house.sources import ROOT
from tests.system.evidence import HAS_FAILED, keep_evidence
from tests.system.killer import Killer
from tests.system.launcher import PRELOAD, Launcher, Running
from tests.system.recording import Recording, Step
from tests.system.recovery_scripts.recipe import SAMPLES, Recipe
from tests.system.replay import TOLERANCE, find_distance
from tests.waiting import wait_until

SCRIPT = ROOT / "tests" / "system" / "recovery_scripts" / "train.py"
SIZE = 3
LOSSES = 20
LIMIT_SECONDS = 100.0
CARD_TOLERANCE = 1e-10  # a card computes other last bits than the CPU, which makes the steps again
CARD_SLACK_BYTES = 64 << 20  # a context that stays takes some hundred MB

CARD_LIMIT_SECONDS = 140.0  # before `make gpu` itself ends the test: then evidence would be cut off
ON_CARD = [
    pytest.mark.gpu,
    pytest.mark.timeout(CARD_LIMIT_SECONDS),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
NCCL = pytest.param(("cuda", "nccl"), marks=ON_CARD, id="nccl")
GLOO = pytest.param(("cuda", "gloo"), marks=ON_CARD, id="gloo")
CPU = pytest.param(("cpu", "gloo"), marks=pytest.mark.nightly, id="cpu")

# What is trained, the options of hvdrun and of the script, and who dies: the original rank, the step and the place.
STORIES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...], str]] = {
    "in forward": ("wide,clip", (), (), "1:3:compute"),
    "in backward, rank 0": ("wide,norm", (), (), "0:4:backward"),
    "while they connect": ("wide", (), (), "1:0:started"),
    "in a small collective": ("norm,clip", (), (), "2:4:started"),
    "stopped": ("wide", ("--lease", "2s"), ("--signal", "SIGSTOP"), "2:3:reduction"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """Trainings on one kind of device, with one backend between the workers."""

    hvdrun: Launcher
    device: str
    backend: str
    folder: Path
    started: list[Running] = field(default_factory=list)

    def start(self, *words: str | Path) -> Running:
        """Start hvdrun. Where only a wheel is installed, nothing else leads the script to the modules of tests."""
        environment = {"PYTHONPATH": os.pathsep.join(map(str, (PRELOAD, ROOT)))}
        if self.backend == "nccl":
            environment |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{self.folder}/%p.nccl"}
            environment["TORCH_CPP_LOG_LEVEL"] = "INFO"
        self.started.append(self.hvdrun.start(*words, environment=environment))
        return self.started[-1]

    def list_words(self, features: str, *options: str) -> list[str | Path]:
        """The command of hvdrun."""
        launch = ("-np", str(SIZE), "--min-np", "1", "--backend", self.backend, *options)
        return [*launch, "python", SCRIPT, self.folder, features, "--device", self.device]

    def keep_evidence(self, into: Path) -> None:
        """Keep what the workers do, and all that the job has written."""
        outputs = {"processes": "\n".join(map(str, self.hvdrun.processes()))}
        for number, running in enumerate(self.started):
            outputs |= {f"{number}.stdout": running.stdout.text(), f"{number}.stderr": running.stderr.text()}
        keep_evidence([int(path.stem) for path in self.folder.glob("*.place")], self.folder, outputs, into)

    def check(self, features: str) -> Recording:
        """All have the same parameters to the last bit, and one process comes to them with the same steps."""
        recording = Recording(self.folder)
        recording.check_replicas()
        distance = find_distance(Recipe(features), recording.list_steps(), torch.load(recording.find_parameters()))
        assert distance < (TOLERANCE if self.device == "cpu" else CARD_TOLERANCE)
        return recording


def count_used() -> int:
    """The bytes in use on all cards, by any process; 0 where there is none."""
    cards = range(torch.cuda.device_count())
    pairs = [torch.cuda.mem_get_info(card) for card in cards]
    return sum(total - free for free, total in pairs)


@pytest.fixture
def job(request: pytest.FixtureRequest, hvdrun: Launcher) -> Iterator[Job]:
    """A job that leaves no memory in use on a card; of one that fails, evidence is kept."""
    device, backend = request.param
    if backend == "nccl" and (objection := request.getfixturevalue("nccl_objection")):
        pytest.skip(objection)
    folder = hvdrun.directory / "notes"
    folder.mkdir()
    used = count_used()
    job = Job(hvdrun, device, backend, folder)
    yield job
    if request.node.stash.get(HAS_FAILED, True):
        job.keep_evidence(EVIDENCE / re.sub(r"\W+", "-", request.node.name).strip("-"))
        return
    wait_until(lambda: count_used() <= used + CARD_SLACK_BYTES, "the end of all contexts")


def shrink(job: Job, story: str) -> list[Step]:
    """Lose a worker without a replacement; the steps."""
    features, launch, train, death = STORIES[story]
    if job.device == "cpu" and "wide" not in features:  # small sums travel with the requests
        death = death.replace("started", "reduction")
    words = [*job.list_words(features, *launch), "--steps", "8", *train, "--kill", death]
    finished = job.start(*words).wait(LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    assert len(list(job.folder.glob("*.dead"))) == 1
    return job.check(features).list_steps()


@pytest.mark.parametrize("job", [NCCL, CPU], indirect=True)
@pytest.mark.parametrize("story", STORIES)
def test_survivors_lose_no_step(job: Job, story: str) -> None:
    steps = shrink(job, story)
    dead = int(STORIES[story][-1][0])
    assert len(steps) == 8
    assert set(steps[-1].members[0]) == set(range(SIZE)) - {dead}


@pytest.mark.parametrize("job", [GLOO], indirect=True)
def test_survivors_lose_no_step_through_gloo_on_one_card(job: Job) -> None:
    assert len(shrink(job, "in backward, rank 0")) == 8


@pytest.mark.parametrize("job", [NCCL, CPU], indirect=True)
def test_a_replacement_trains_with_the_others(job: Job) -> None:
    words = [*job.list_words("wide,clip"), "--epochs", "2", "--entries", "2", "--kill", "1:6:reduction"]
    finished = job.start(*words).wait(LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    recording = job.check("wide,clip")
    recording.check_samples(SAMPLES)
    steps = recording.list_steps()
    assert steps[6].members[0] == (0, 2)
    assert steps[-1].members[0] == (0, 1, 2)


@pytest.mark.parametrize("job", [NCCL, CPU], indirect=True)
def test_a_job_outlives_twenty_losses(job: Job) -> None:
    # Three deaths after one to three steps each have closed a slot.
    running = job.start(
        *job.list_words("wide,clip", "--slot-failures", str(LOSSES + 1)), "--until", job.folder / "stop"
    )
    killer = Killer(job.folder, running)
    phases = ("compute", "reduction", "commit round")
    for number in range(LOSSES):
        killer.await_training(SIZE + number, step=0)  # each, and all who came in the place of a dead one
        victims = killer.find_victims()
        place = number % len(victims)
        assert killer.kill(phases[number % len(phases)], victims[place:] + victims[:place])
    killer.await_training(SIZE + LOSSES, step=0)
    (job.folder / "stop").touch()
    finished = running.wait(LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    job.check("wide,clip").check_samples(SAMPLES)
