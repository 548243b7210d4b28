"""Workers are killed in real jobs: the others continue, no step is lost or made twice, and all can be made again.

Each job writes down every step, and who took part; one process then makes the same steps, and comes to the same
parameters. Each worker gets its place of death, so that all are met; what comes of itself at random moments is in
`test_random_recoveries.py`. With HVDRUN_SOAK_RUNS set, all places and features are met.
"""

import itertools
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.house.sources import ROOT
from tests.system.launcher import Finished, Launcher
from tests.system.recording import Recording, Step, read_notes
from tests.system.recovery_scripts.recipe import SAMPLES, Recipe
from tests.system.replay import TOLERANCE, find_distance
from tests.system.roles import find_sequencers, kill
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

SCRIPT = ROOT / "tests" / "system" / "recovery_scripts" / "train.py"
IS_SOAK = "HVDRUN_SOAK_RUNS" in os.environ
LIMIT_SECONDS = 60.0
EVERYTHING = "norm,sparse,clip,schedule,accumulate,two,adasum,scaler"

# What waits for a rank that is gone cannot be run again: its result would depend on who is left.
EXCHANGES = """
import os, pathlib, signal, sys
import torch
import worker_runtime.torch as hvd
hvd.init()
def exchange(step):
    if step == 3 and hvd.rank() == 1 and not pathlib.Path("dead").exists():
        pathlib.Path("dead").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.alltoall(torch.ones(hvd.size()), name="parts")
if sys.argv[1] == "plain":
    for step in range(6):
        exchange(step)
else:
    state = hvd.elastic.TorchState(step=0, seen=())
    @hvd.elastic.run
    def train(state):
        print("from", state.step, state.seen, flush=True)
        while state.step < 6:
            state.seen += (state.step,)
            exchange(state.step)
            state.step += 1
            if state.step == 2:
                state.commit()
    train(state)
    print("seen", state.seen, hvd.size(), flush=True)
"""


@pytest.fixture
def folder(hvdrun: Launcher) -> Path:
    """Where the workers write."""
    path = hvdrun.directory / "notes"
    path.mkdir()
    return path


def check(folder: Path, features: str, finished: Finished) -> list[Step]:
    """The job has ended well, and one process comes to the same parameters; the steps."""
    assert finished.returncode == 0, finished.stderr
    recording = Recording(folder)
    recording.check_replicas()
    steps = recording.list_steps()
    distance = find_distance(Recipe(features), steps, torch.load(recording.find_parameters()))
    assert distance < TOLERANCE
    return steps


def shrink(hvdrun: Launcher, folder: Path, features: str, *deaths: str) -> list[Step]:
    """A job of three without a state, in which some die; its steps."""
    kills = [word for death in deaths for word in ("--kill", death)]
    command: list[str | Path] = ["python", SCRIPT, folder, features, "--steps", "10", *kills]
    finished = hvdrun("-np", "3", "--min-np", "1", *command, limit_seconds=LIMIT_SECONDS)
    steps = check(folder, features, finished)
    dead = {int(death.partition(":")[0]) for death in deaths}
    assert len(list(folder.glob("*.dead"))) == len(deaths)
    assert len(steps) == 10
    assert steps[0].members[0] == (0, 1, 2)
    assert set(steps[-1].members[-1]) == {0, 1, 2} - dead
    return steps


SHRINKING = {
    "everything, between synchronize() and step(), then rank 0": (EVERYTHING, "2:3:between", "0:7:reduction"),
    "through gloo, the second while the group is formed": ("wide,clip,two", "1:5:backward", "0:5:forming"),
    "a commit that was asked for by all": ("clip,accumulate", "1:4:asked"),
    "a commit that one has not asked for": ("wide,clip,adasum", "2:4:commit"),
    "while it computes, and another when a commit is over": ("norm,wide,clip", "1:3:compute", "0:7:committed"),
}
PLACES = ("compute", "backward", "reduction", "commit", "asked", "committed", "between")
FEATURES = ("norm,wide,clip", "sparse", "clip,schedule", "accumulate", "two", "adasum", "scaler", EVERYTHING)
if IS_SOAK:
    SHRINKING |= {
        f"{features}, {place}, rank {victim}": (features, f"{victim}:{step}:{place}")
        for features, place, (victim, step) in itertools.product(FEATURES, PLACES, ((0, 1), (1, 5)))
        if not (features == "adasum" and place == "between")
    }


@pytest.mark.parametrize("story", rest_nightly(SHRINKING))
def test_a_script_without_a_state_shrinks_and_loses_no_step(hvdrun: Launcher, folder: Path, story: str) -> None:
    features, *deaths = SHRINKING[story]
    steps = shrink(hvdrun, folder, features, *deaths)
    for death in deaths:
        victim, step, place = death.split(":")
        if place in {"compute", "backward", "reduction", "commit"}:  # its part of that step is not in it
            assert int(victim) not in steps[int(step)].members[-1]
        if place in {"committed", "between"}:  # the step was committed with it
            assert int(victim) in steps[int(step)].members[0]
        assert int(victim) in steps[int(step) - 1].members[-1]


@pytest.mark.parametrize("number", rest_nightly([signal.SIGKILL, signal.SIGSTOP]))
def test_a_sequencer_that_is_killed_or_stopped_costs_no_worker(
    hvdrun: Launcher, folder: Path, number: signal.Signals
) -> None:
    command = ("python", SCRIPT, folder, "clip", "--until", folder / "stop")
    running = hvdrun.start("-np", "2", "--min-np", "1", *command)
    wait_until(lambda: any(note["what"] == "step" and note["step"] > 3 for note in read_notes(folder)))
    (former,) = find_sequencers(hvdrun)
    kill(former, number)
    wait_until(lambda: former not in find_sequencers(hvdrun))
    wait_until(lambda: find_sequencers(hvdrun) not in ([], [former]))
    (folder / "stop").touch()
    steps = check(folder, "clip", running.wait(LIMIT_SECONDS))
    assert {step.members for step in steps} == {((0, 1),)}


@pytest.mark.parametrize(
    ("victim", "options", "kills_forkserver"),
    rest_nightly([(0, ("--children", "2"), False), (1, (), True)]),
    ids=["0", "1"],
)
def test_a_worker_is_replaced_and_taken_in_with_the_state_of_the_others(
    hvdrun: Launcher,
    folder: Path,
    victim: int,
    options: tuple[str, ...],
    *,
    kills_forkserver: bool,
) -> None:
    """Rank 0 has children that hold its connections open; the other's replacement cannot be forked."""
    command: list[str | Path] = ["python", SCRIPT, folder, "clip", "--epochs", "2", "--entries", "2", *options]
    death = ("--kill", f"{victim}:12:reduction")
    running = hvdrun.start("-np", "2", "--min-np", "1", *command, *death)
    if kills_forkserver:
        wait_until(lambda: len([note for note in read_notes(folder) if note["what"] == "ready"]) == 2)
        (forkserver,) = hvdrun.processes("-m worker_runtime.startup.forkserver")
        kill(forkserver.pid)
    finished = running.wait(LIMIT_SECONDS)
    steps = check(folder, "clip", finished)
    assert all(line.startswith("hvdrun: ") for line in finished.stderr.splitlines()), finished.stderr
    recording = Recording(folder)
    recording.check_samples(SAMPLES)
    assert steps[12].members[0] == (1 - victim,)
    assert steps[-1].members[0] == (0, 1)
    assert len(recording.list_pids("ready")) == 3
    assert len(recording.list_pids("done")) == 2
    for path in hvdrun.watch.temporary.glob("pymp-*"):  # of children that were killed: Python's own
        shutil.rmtree(path)


# How many workers, of what, and which of them die in step 5, where: before the first optimizer steps ("backward"),
# between it and the second ("end"), or after the last ("stepped").
LOSSES = {
    "between, one of two": (2, "two", (1,), "end"),
    "between, one of four": (4, "two,sets", (3,), "end"),
    "between, three of four": (4, "two,accumulate", (0, 1, 3), "end"),
    "before, one of two": (2, "two", (0,), "backward"),
    "after, one of two": (2, "two,adasum", (1,), "stepped"),
}
if IS_SOAK:
    LOSSES |= {
        f"{features}, {place}, {victims} of {size}": (size, features, victims, place)
        for features, place, (size, victims) in itertools.product(
            ("two", "two,adasum", "two,accumulate"),
            ("backward", "end", "stepped"),
            ((2, (0,)), (2, (1,)), (3, (2,)), (3, (0, 1)), (4, (0,))),
        )
    }


@pytest.mark.parametrize("story", rest_nightly(LOSSES))
def test_a_batch_counts_for_the_ranks_of_the_last_of_its_steps_however_few_are_left(
    hvdrun: Launcher, folder: Path, story: str
) -> None:
    size, features, victims, place = LOSSES[story]
    kills = [word for victim in victims for word in ("--kill", f"{victim}:5:{place}")]
    command: list[str | Path] = ["python", SCRIPT, folder, features, "--epochs", "1", *kills]
    finished = hvdrun("-np", str(size), "--min-np", "1", *command, limit_seconds=LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    recording = Recording(folder)
    everybody = tuple(range(size))
    left = tuple(member for member in everybody if member not in victims)
    first, *others = recording.list_steps()[5].members
    assert first == (left if place == "backward" else everybody)
    assert others == [everybody if place == "stepped" else left] * len(others)
    recording.check_replicas()
    recording.check_samples(SAMPLES)


@pytest.mark.nightly
def test_an_operation_that_cannot_be_repeated_ends_a_script_without_a_state(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", EXCHANGES)
    finished = hvdrun("-np", "3", "--min-np", "1", "python", "train.py", "plain")
    assert finished.returncode == 75
    assert "alltoall 'parts'" in finished.stderr
    assert "decorate the training function with hvd.elastic.run" in finished.stderr


def test_an_operation_that_cannot_be_repeated_takes_a_state_back_to_its_last_commit(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", EXCHANGES)
    finished = hvdrun("-np", "3", "--min-np", "1", "python", "train.py", "state")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("from 0 ()\n") == 3
    assert finished.stdout.count("from 2 (0, 1)\n") >= 2
    assert "seen (0, 1, 2, 3, 4, 5) " in finished.stdout


# One rank alone has an error of its own, again and again, and the job gets on between two of them.
ERRORS = """
import torch
import worker_runtime.torch as hvd
hvd.init()
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
raised = set()
@hvd.elastic.run
def train(state):
    while state.step < 58:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        state.step += 1
        if state.step % 5 == 0:
            state.commit()
        if hvd.rank() == 0 and state.step % 12 == 0 and state.step not in raised:
            raised.add(state.step)
            raise hvd.HorovodInternalError("it broke")
train(state)
print("ended", hvd.size(), state.step, len(raised), flush=True)
"""


@pytest.mark.nightly
def test_one_rank_may_fail_again_and_again_while_the_job_gets_on(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", ERRORS)
    finished = hvdrun("-np", "2", "--min-np", "1", "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] ended 2 58 4", "[1] ended 2 58 0"]
    assert "Traceback" not in finished.stderr
