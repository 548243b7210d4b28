"""One of 2 to 4 workers dies between two statements of a step, drawn by a seed: the step is made exactly once.

It is made with the gradients of all members where they all have given them, and else with those of the survivors; one
process that makes the same steps comes to the same parameters. Each seed draws how the gradients are reduced, which
statements a step has, and after which of them the worker dies. `make test` plays one seed, `make nightly` seven more,
and `make soak` 400 (HVDRUN_SOAK_RUNS).
"""

import os
import random
from dataclasses import dataclass

import pytest
import torch

from tests.house.sources import ROOT
from tests.system.launcher import Launcher
from tests.system.recording import Recording
from tests.system.recovery_scripts.recipe import SAMPLES, Recipe
from tests.system.replay import TOLERANCE, find_distance
from tests.system.tables import rest_nightly

SCRIPT = ROOT / "tests" / "system" / "recovery_scripts" / "train.py"
RUNS = int(os.environ.get("HVDRUN_SOAK_RUNS", "8"))
LIMIT_SECONDS = 60.0
OPERATIONS = ("sum", "product", "average")
BEFORE = ("compute", "backward")  # some gradient of the worker is lacking: the step is the survivors'
OPEN = ("reduction", "commit", "asked")  # a step that all survivors have the results of is done, with its share
AFTER = ("committed", "end")
# The features of a step's statements, and the places that only these steps have: all of them after the agreement.
PLACES_BY_FEATURES: dict[str, tuple[str, ...]] = {
    "scaler,clip": ("between", "clipped"),
    "clip": ("between", "clipped"),
    "scaler,synchronize,clip": ("synchronized", "between", "clipped"),
    "scaler,synchronize": ("synchronized", "between"),
    "step": (),
    "scaler,step": (),
    "closure": (),
}
EXTRAS = ("accumulate", "two", "norm", "wide", "schedule", "sparse")


@dataclass(frozen=True)
class Loss:
    """What a seed draws.

    features: the features of the recipe.
    size: the size of the job.
    victim: the original rank that dies.
    step: the step in which it dies.
    part: at which optimizer.
    place: where.
    time: which time it comes there.
    entries: how many memberships the training has at least, if it has a state: 2 where it waits for the worker that
        takes the place of the lost one. 0 without a state: the job stays smaller.
    """

    features: str
    size: int
    victim: int
    step: int
    part: int
    place: str
    time: int
    entries: int


def draw(seed: int) -> Loss:
    """The same for the same seed."""
    chance = random.Random(seed)  # noqa: S311 - a story, not a secret
    operation = OPERATIONS[seed % len(OPERATIONS)]
    way = list(PLACES_BY_FEATURES)[seed % len(PLACES_BY_FEATURES)]
    extras = chance.sample(EXTRAS, chance.randint(0, 3))
    if operation == "product" and "sparse" in extras:
        extras.remove("sparse")  # which has no product
    entries = chance.choice((0, 0, 1, 2))
    if operation == "product":
        entries = min(entries, 1)  # a long training would grow beyond all numbers
    passes, parts = 1 + ("accumulate" in extras), 1 + ("two" in extras)
    place = chance.choice((*BEFORE, *OPEN, *AFTER, "stepped", *PLACES_BY_FEATURES[way] * 3))
    part = parts - 1 if place == "stepped" else chance.randrange(parts)
    time = {"stepped": 1, "backward": part * passes + chance.randint(1, passes)}.get(place, part + 1)
    size = chance.choice((2, 3, 3, 4))
    features = ",".join((operation, *way.split(","), *extras))
    return Loss(features, size, chance.randrange(size), chance.randint(1, 6), part, place, time, entries)


@pytest.mark.parametrize("seed", rest_nightly(range(RUNS)))
def test_a_step_counts_once_wherever_between_its_statements_a_worker_dies(hvdrun: Launcher, seed: int) -> None:
    loss = draw(seed)
    folder = hvdrun.directory / "notes"
    folder.mkdir()
    death = f"{loss.victim}:{loss.step}:{loss.place}:{loss.time}"
    length = ("--epochs", "1", "--entries", str(loss.entries)) if loss.entries else ("--steps", "9")
    command = ("python", SCRIPT, folder, loss.features, *length, "--kill", death)
    finished = hvdrun("-np", str(loss.size), "--min-np", "1", *command, limit_seconds=LIMIT_SECONDS)
    story = f"seed {seed}: {loss}"
    assert finished.returncode == 0, f"{story}\n{finished.stderr}"
    assert len(list(folder.glob("*.dead"))) == 1, story
    recording = Recording(folder)
    recording.check_replicas()
    if loss.entries:
        recording.check_samples(SAMPLES)
    steps = recording.list_steps()
    everybody = tuple(range(loss.size))
    left = tuple(member for member in everybody if member != loss.victim)
    for part, members in enumerate(steps[loss.step].members):
        is_agreed = part < loss.part or (part == loss.part and loss.place not in BEFORE)
        is_open = part == loss.part and loss.place in OPEN
        assert members in ((everybody, left) if is_open else (everybody if is_agreed else left,)), story
    distance = find_distance(Recipe(loss.features), steps, torch.load(recording.find_parameters()))
    assert distance < TOLERANCE, story
