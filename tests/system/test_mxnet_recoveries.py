"""Workers of elastic MXNet jobs die at generated places: no step and no sample is lost, and newcomers join.

Each seed draws how the gradients are averaged, what the network has, and who dies where: in forward, backward, the
reduction, the step, a commit, a sync; rank 0, several, a newcomer before its first forward. Then the job grows to its
full size again. `make test` plays one seed, `make nightly` nine more, and `make soak` 200 (HVDRUN_SOAK_RUNS).
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.frameworks import needs_mxnet
from tests.house.sources import ROOT
from tests.system.launcher import Launcher
from tests.system.recording import Recording, read_notes
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

pytestmark = [needs_mxnet, pytest.mark.timeout(400)]

SCRIPT = ROOT / "tests" / "system" / "recovery_scripts" / "train_mxnet.py"
RUNS = int(os.environ.get("HVDRUN_SOAK_RUNS", "10"))
SAMPLES = 120  # of the script
LIMIT_SECONDS = 180.0  # on a busy machine
SIZE = 3
TRAININGS = ("trainer", "optimizer", "module")
EXTRAS = {
    "trainer": ("adam", "deferred", "hybrid", "norm", "sparse", "wide"),
    "optimizer": ("adam", "deferred", "hybrid", "norm", "sparse", "wide"),
    "module": ("adam", "norm", "wide"),
}
PLACES = ("compute", "backward", "reduction", "commit", "committed", "stepped", "saving")
LATER = ("compute", "syncing")  # where a newcomer dies before its first step, and others while it gets the state


@dataclass(frozen=True)
class Story:
    """What a seed draws.

    features: the features of the script.
    every: steps between commits.
    deaths: as the script takes them.
    """

    features: str
    every: int
    deaths: tuple[str, ...]


def draw(seed: int) -> Story:
    """The same for the same seed. The first seeds meet each way, place and kind of victim."""
    chance = random.Random(seed)  # noqa: S311 - a story, not a secret
    way = TRAININGS[seed % len(TRAININGS)]
    extras = chance.sample(EXTRAS[way], chance.randint(1, 3))
    if seed % 8 == 7:
        extras.append("children")  # of the data loader
    victims = chance.sample(range(SIZE), 2)
    if seed % 3 == 1:
        victims.remove(0) if 0 in victims else None
        victims.insert(0, 0)
    deaths = [f"{victims[0]}:{chance.randint(1, 12)}:{PLACES[seed % len(PLACES)]}"]
    kind = seed % 4
    if kind == 0:
        deaths.append(f"new:0:{LATER[seed // 4 % 2]}")
    elif kind == 1:
        deaths.append(f"{victims[1]}:{chance.randint(1, 15)}:{chance.choice(PLACES)}")
    elif kind == 2:  # while the newcomer in place of the first gets the state
        deaths.append(f"{victims[1]}:1:syncing")
    return Story(",".join((way, *extras)), chance.choice((1, 3, 10)), tuple(deaths))


def has_grown(folder: Path, deaths: int) -> bool:
    """All deaths have been died, and all members of a full job have made a step since."""
    notes = read_notes(folder)
    dying = [note["at"] for note in notes if note["what"] == "dying"]
    entries = [note for note in notes if note["what"] == "enter" and note["size"] == SIZE]
    if len(dying) < deaths or not entries:
        return False
    last = entries[-1]["entry"]
    begun = min(note["at"] for note in entries if note["entry"] == last)
    stepping = {note["pid"] for note in notes if note["what"] == "step" and note["entry"] == last}
    return begun > max(dying) and len(stepping) == SIZE


@pytest.mark.parametrize("seed", rest_nightly(range(RUNS)))
def test_a_job_that_loses_workers_grows_again_and_loses_no_step(hvdrun: Launcher, seed: int) -> None:
    story = draw(seed)
    folder = hvdrun.directory / "notes"
    folder.mkdir()
    deaths = [word for death in story.deaths for word in ("--death", death)]
    command = ("python", SCRIPT, folder, story.features, "--until", folder / "stop", "--every", str(story.every))
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    running = hvdrun.start("-np", str(SIZE), "--min-np", "1", *command, *deaths, environment=environment)
    reported = f"seed {seed}: {story}"
    try:
        wait_until(lambda: has_grown(folder, len(story.deaths)) or not running.is_running, reported, LIMIT_SECONDS)
    finally:
        (folder / "stop").touch()
    finished = running.wait(LIMIT_SECONDS)
    assert finished.returncode == 0, f"{reported}\n{finished.stderr}"
    assert len(list(folder.glob("*.dead"))) == len(story.deaths), reported
    recording = Recording(folder)
    recording.check_replicas()
    recording.check_samples(SAMPLES)
    assert recording.list_entries()[-1].size == SIZE, reported
