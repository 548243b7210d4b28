"""1 to 3 of 4 workers are killed at random moments of a training: no step and no sample is lost, or counts twice.

Lost workers are replaced and taken in, so that a job may see more of them than it began with. `make test` plays one
seed, `make nightly` seven more, and `make soak` 200 (HVDRUN_SOAK_RUNS). In the end it shows how many were killed in
which part of a step; in 200 runs none is spared. The first is aimed at, in turn, since chance would hardly meet the
short ones; `test_recovery.py` has each of them.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from tests.house.sources import ROOT
from tests.system.killer import PHASES, Killer
from tests.system.launcher import Launcher
from tests.system.recording import Recording
from tests.system.recovery_scripts.recipe import SAMPLES, Recipe
from tests.system.replay import TOLERANCE, find_distance
from tests.system.tables import rest_nightly
from tests.system.terminal_notes import show

SCRIPT = ROOT / "tests" / "system" / "recovery_scripts" / "train.py"
RUNS = int(os.environ.get("HVDRUN_SOAK_RUNS", "8"))
ALL_PHASES = 20  # so many runs meet all of them
SIZE = 4
LIMIT_SECONDS = 100.0
FEATURES = (
    *(
        "clip,gan,sets",
        "closure,accumulate,join",
        "clip,norm,sparse",
        "sync,sets,join",
        "clip,groups,wide",
        "closure,two,sets",
    ),
    *("clip,gan,accumulate,predivide", "clip,sync,wide", "clip,accumulate,groups,sets", "closure,gan,join"),
    *("clip,two,join", "dense,norm,sparse"),
)
PAUSES = (0.0, 0.0, 0.02, 0.3, 1.0)  # seconds at most between two deaths


@pytest.fixture(scope="module")
def toll(request: pytest.FixtureRequest) -> Iterator[Counter[str]]:
    """How many workers were killed in which phase, over all runs."""
    counts = Counter[str]()
    yield counts
    runs = counts.pop("runs", 0)
    reported = ", ".join(f"{phase} {counts[phase]}" for phase in PHASES)
    show(request, f"killed in {runs} runs: {reported}")
    if runs == RUNS > ALL_PHASES:
        assert all(counts[phase] for phase in PHASES)


def kill_some(killer: Killer, seed: int, chance: random.Random) -> None:
    """One to three workers, as the seed has it."""
    phases = list(PHASES)
    first = phases[seed % len(phases)]
    if first == "forming":  # another one must die before
        plan: list[str | None] = [chance.choice(phases[:-1]), first]
    else:
        plan = [first, *chance.choices([None, *phases[:-1]], k=chance.randint(0, 2))]  # None: at any moment
    victims: list[int] = []
    for number, phase in enumerate(plan):
        if phase != "forming":  # which takes so few milliseconds that no worker can be looked for
            if number:
                time.sleep(chance.uniform(0, chance.choice(PAUSES)))  # the moment is tested, and no event marks it
            victims = killer.find_victims()
        if len(victims) > 1:
            chance.shuffle(victims)
            killer.kill(phase or chance.choice(phases[:-1]), victims if phase else victims[:1])


@pytest.mark.parametrize("seed", rest_nightly(range(RUNS)))
def test_a_training_survives_random_kills(hvdrun: Launcher, seed: int, toll: Counter[str]) -> None:
    chance = random.Random(seed)  # noqa: S311 - a story, not a secret
    folder = hvdrun.directory / "notes"
    folder.mkdir()
    features, every = FEATURES[seed % len(FEATURES)], chance.choice([1, 3, 10])
    running = hvdrun.start(
        *("-np", str(SIZE), "--min-np", "1", "python", SCRIPT, folder, features),
        *("--until", folder / "stop", "--every", str(every)),
    )
    killer = Killer(folder, running)
    killer.await_training(SIZE, chance.randrange(15))
    kill_some(killer, seed, chance)
    time.sleep(chance.choice([0.0, 1.0]))  # with or without those that take the place of the dead
    (folder / "stop").touch()
    story = f"seed {seed}: {features}, a commit every {every} steps, killed while {', '.join(killer.killed)}"
    finished = running.wait(LIMIT_SECONDS)
    assert finished.returncode == 0, f"{story}\n{finished.stderr}"
    recording = Recording(folder)
    recording.check_replicas()
    recording.check_samples(SAMPLES)
    if "sync" not in features:  # whose statistics may be of more members than the gradients
        distance = find_distance(Recipe(features), recording.list_steps(), torch.load(recording.find_parameters()))
        assert distance < TOLERANCE, story
    toll.update(killer.killed)
    toll["runs"] += 1
