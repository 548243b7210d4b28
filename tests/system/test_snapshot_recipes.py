"""Scripts that write a checkpoint in each step into memory, as the docs show, lose no step by a kill."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.system.launcher import Launcher
from tests.system.packages import IMPORTS_SECONDS, make_environment
from tests.system.snapshot_recipes import RECIPES, STEPS, check_losses, read_begins
from tests.system.test_restarted_programs import PACKAGES


@pytest.fixture(scope="module")
def frameworks() -> Iterator[dict[str, str]]:
    """The variables with which `python` has Lightning and Trainer."""
    with TemporaryDirectory(prefix="hvd-frameworks-") as folder:
        yield {"PATH": make_environment(Path(folder), *PACKAGES)}


@pytest.mark.nightly
@pytest.mark.timeout(600)  # packages are installed, and each start imports them
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_continues_with_the_step_after_the_last_one(
    hvdrun: Launcher, frameworks: dict[str, str], recipe: str
) -> None:
    hvdrun.write("train.py", RECIPES[recipe])
    alone = ("-np", "2", "python", "train.py")
    undisturbed = hvdrun(*alone, environment=frameworks, limit_seconds=IMPORTS_SECONDS)
    shutil.rmtree(hvdrun.directory / "checkpoints")
    steps = 5, random.randrange(8, STEPS - 1)  # noqa: S311 - no secret
    words = [f"{random.randrange(2)},{step}" for step in steps]  # noqa: S311 - no secret
    killed = ("-np", "2", "--max-restarts", "2", "python", "train.py", *words)
    finished = hvdrun(*killed, environment=frameworks, limit_seconds=IMPORTS_SECONDS)
    assert finished.returncode == 0, (words, finished.stderr)
    check_losses(undisturbed.stdout, finished.stdout)
    begins = read_begins(finished.stdout)
    # Lightning does not save in the last step of an epoch, of which each has six.
    expected = [step if recipe == "Lightning" and step % 6 == 5 else step + 1 for step in steps]
    assert [step for step, _ in begins] == [0, *expected]
    assert all(path.startswith("/dev/shm/hvdrun-") for _, path in begins[1:])  # noqa: S108 - where it is to be
