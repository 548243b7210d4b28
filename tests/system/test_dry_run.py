"""`--dry-run` is true: what it shows is what a job that is then started has, and it starts nothing."""

import json
import re
import shlex

import pytest

from hvdrun.cli.plan import LATER
from tests.system.launcher import Launcher

PRINTS = """
import json, os, pathlib, sys

reported = {"program": sys.executable, "directory": os.getcwd(), "environment": dict(os.environ)}
pathlib.Path("reported" + os.environ["RANK"]).write_text(json.dumps(reported))
"""
HOSTS = ("-np", "3", "-H", "localhost:2,127.0.0.1:1")


def read_plan(text: str) -> dict[str, dict[str, str]]:
    """The variables of each rank, as a plan shows them."""
    _, *parts = re.split(r"^\S+: this machine$", text, flags=re.MULTILINE)
    shown: dict[str, dict[str, str]] = {}
    for part in parts:
        pairs = re.findall(r"^    (\w+)=(.*)$", part, re.MULTILINE)
        shared = {name: value if value == LATER else "".join(shlex.split(value)) for name, value in pairs}
        ranks = re.findall(r"^    rank (\d+): (.*)$", part, re.MULTILINE) or [(shared["RANK"], "")]
        for rank, words in ranks:
            shown[rank] = shared | dict(word.split("=", 1) for word in shlex.split(words))
    return shown


def test_the_shown_environment_is_that_of_the_workers(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", PRINTS)
    around = {"HVD_JOB": "around", "OMP_NUM_THREADS": "3", "RANK": "7"}
    planned = hvdrun(*HOSTS, "--dry-run", "python", "train.py", environment=around)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert list(hvdrun.directory.iterdir()) == [hvdrun.directory / "train.py"]

    assert hvdrun(*HOSTS, "python", "train.py", environment=around).returncode == 0
    plan = read_plan(planned.stdout)
    own = {**hvdrun.environment(), **around}
    for rank in ("0", "1", "2"):
        reported = json.loads((hvdrun.directory / f"reported{rank}").read_text())
        got = reported["environment"]
        assert {name: value for name, value in plan[rank].items() if value != LATER}.items() <= got.items()
        assert {name for name in got if got[name] != own.get(name)} <= plan[rank].keys()
        assert plan[rank].keys() <= got.keys()
        assert f"  program    {reported['program']}\n" in planned.stdout
        assert f"  directory  {reported['directory']}\n" in planned.stdout


@pytest.mark.parametrize(
    ("forks", "command"),
    [
        (True, ("python", "train.py")),
        (False, ("python", "train.py")),
        (True, ("python", "early.py")),
    ],
    ids=["forked", "refused", "early variable"],
)
def test_the_shown_way_of_starting_is_the_one_taken(hvdrun: Launcher, command: tuple[str, ...], *, forks: bool) -> None:
    hvdrun.write("train.py", "pass\n")
    hvdrun.write("early.py", "import os\nos.environ['OMP_PROC_BIND'] = 'true'\n")
    planned = hvdrun("-np", "1", "--dry-run", *command, forks=forks)
    (way,) = re.findall(r"^  start      (\w+)(?:, where| (\(.*\)))?", planned.stdout, re.MULTILINE)
    started = hvdrun("-np", "1", "-v", *command, forks=forks)
    (taken,) = re.findall(r"localhost:0 is process \d+, (\w+)(?: (\(.*\)))?", started.stderr)
    assert taken == way
