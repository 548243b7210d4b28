"""Hangs of many kinds: the line names the rank that hangs and its function, and no other."""

import re
from collections.abc import Sequence

import pytest

from tests.system.hangs import KINDS, LINE, SCRIPTS, Hang, find_wrong, make_hangs
from tests.system.launcher import Launcher

SIZE = 3
LAST = SIZE - 1
MODES = {"static": (), "elastic": ("--min-np", "2")}
FEW = [Hang("queue_get", LAST), Hang("call_with_the_gil", 0), Hang("two_locks", LAST)]


def run(hvdrun: Launcher, framework: str, mode: str, hangs: Sequence[Hang]) -> None:
    """Run a job in which one hang follows the other, each of which is ended when its line has come."""
    hvdrun.write("train.py", SCRIPTS[framework])
    words = ("-np", str(SIZE), *MODES[mode], "--watch-after", "1", "python", "train.py", *map(str, hangs))
    running = hvdrun.start(*words, forks=True)
    named = 0
    for number, hang in enumerate(hangs):
        found = running.stderr.wait_for(rf"^hvdrun: .* in allreduce 'after {number}' for .*$", 60)
        match = LINE.match(found[0])
        named += match is not None and (match["function"], match["rank"]) == (hang.kind, str(hang.rank))
        hvdrun.write(f"go.{number}", "")
    finished = running.wait()
    print(f"{named} of {len(hangs)} hangs named rightly ({framework}, {mode})")  # noqa: T201 - the nightly log shows the score
    assert finished.returncode == 0
    assert find_wrong(finished.stderr, hangs) == []
    assert named == len(hangs)


def test_a_rank_that_hangs_is_named_with_its_function(hvdrun: Launcher) -> None:
    run(hvdrun, "torch", "static", FEW)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_each_kind_of_hang_is_named_on_the_first_and_the_last_rank(hvdrun: Launcher, mode: str) -> None:
    run(hvdrun, "torch", mode, make_hangs([*KINDS, "data_loader"], [0, LAST]))


@pytest.mark.nightly
def test_hangs_beside_mxnet_are_named(hvdrun: Launcher) -> None:
    run(hvdrun, "mxnet", "static", make_hangs(KINDS, [LAST]))


@pytest.mark.nightly
def test_a_launcher_that_is_killed_leaves_no_hanging_rank(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPTS["torch"])
    running = hvdrun.start("-np", "2", "--watch-after", "1", "python", "train.py", "call_with_the_gil:1", forks=True)
    running.stderr.wait_for(re.escape("waited for it"), 60)
    running.close()
