"""Workers that end with an error of their own, in elastic jobs: they are survived as those that are killed.

What a worker that ends means to the others is decided by its exit code: 0, it has left; anything else, it is lost.
"""

import re

import pytest

from tests.system.launcher import Finished, Launcher
from tests.system.tables import rest_nightly

LIMIT_SECONDS = 90.0

# Each rank writes down the steps that it has made and what its parameters are then. `FATES` says who ends how, once.
SCRIPT = """
import json, os, pathlib, signal, sys, time
import torch
import worker_runtime.torch as hvd
FATES = {{
    "raise": lambda: raise_error(),
    "exit": lambda: sys.exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "well": lambda: sys.exit(0),
}}
def raise_error():
    raise ValueError("of the program's own")
def die(place, step):
    for fate, rank, where, when in {deaths}:
        if (rank, where, when) == (hvd.rank(), place, step):
            try:
                pathlib.Path(f"{{fate}}.{{rank}}").touch(exist_ok=False)
            except FileExistsError:
                continue
            FATES[fate]()
hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
def make_step(step):
    optimizer.zero_grad()
    model(torch.full((2, 8), step + 1.0)).square().mean().backward()
    die("backward", step)
    optimizer.step()
    if step == 5:
        hvd.allreduce(torch.ones(1), name="loss")
        die("barrier", step)
        hvd.barrier()
    print("made", step, hvd.size(), round(sum(p.double().sum().item() for p in model.parameters()), 12), flush=True)
{rest}
print("end", hvd.rank(), hvd.size(), flush=True)
"""
WITHOUT_STATE = """
for step in range(12):
    make_step(step)
"""
ELASTIC = """
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
@hvd.elastic.run
def train(state):
    print("begins at", state.step, flush=True)
    while state.step < 12:
        make_step(state.step)
        state.step += 1
        if state.step == 3:
            state.commit()
train(state)
"""


def run(hvdrun: Launcher, rest: str, *deaths: tuple[str, int, str, int], size: int = 3) -> Finished:
    """How a job ends in which workers end so: fate, rank, place and step of each."""
    hvdrun.write("train.py", SCRIPT.format(deaths=repr(deaths), rest=rest))
    return hvdrun("-np", str(size), "--min-np", "1", "python", "train.py", limit_seconds=LIMIT_SECONDS)


def check_steps(finished: Finished, sizes: dict[int, int]) -> None:
    """Every step was made once by each worker of the job, with the same parameters.

    sizes: the sizes of the job, each by the first step with this size.
    """
    assert finished.returncode == 0, finished.stderr
    made: dict[int, list[tuple[int, str]]] = {}
    for line in finished.stdout.splitlines():
        match line.partition("] ")[2].split():
            case ["made", step, size, parameters]:
                made.setdefault(int(step), []).append((int(size), parameters))
    assert sorted(made) == list(range(12))
    for number, reported in made.items():
        expected = next(sizes[since] for since in sorted(sizes, reverse=True) if number >= since)
        assert reported == [(expected, reported[0][1])] * expected, (number, reported)


FAILURES = {
    "one raises, another is killed": (("raise", 0, "backward", 7), ("kill", 2, "backward", 7)),
    "an exception": (("raise", 1, "backward", 7),),
    "an exit code": (("exit", 1, "backward", 7),),
    "rank 0": (("raise", 0, "backward", 7),),
    "while others wait in a barrier": (("exit", 2, "barrier", 5),),
}


@pytest.mark.parametrize("story", rest_nightly(FAILURES))
def test_a_worker_that_fails_is_survived_and_no_step_is_lost(hvdrun: Launcher, story: str) -> None:
    deaths = FAILURES[story]
    finished = run(hvdrun, WITHOUT_STATE, *deaths)
    left = 3 - len(deaths)
    check_steps(finished, {0: 3, deaths[0][3]: left})
    assert finished.stderr.count("was lost") == len(deaths)
    assert finished.stdout.count("] end ") == left


@pytest.mark.nightly
def test_a_training_function_does_not_begin_again_after_a_failure(hvdrun: Launcher) -> None:
    finished = run(hvdrun, ELASTIC, ("exit", 1, "backward", 7))
    begins = [line.partition("] ")[2] for line in finished.stdout.splitlines() if "begins at" in line]
    assert begins.count("begins at 0") >= 3
    # its replacement may be there for the next commit, of which there is none after the failure
    assert "begins at 3" not in begins
    check_steps(finished, {0: 3, 7: 2})


@pytest.mark.nightly
@pytest.mark.parametrize("rest", [WITHOUT_STATE, ELASTIC], ids=["plain", "elastic"])
def test_a_worker_that_ends_with_0_has_left_and_is_named(hvdrun: Launcher, rest: str) -> None:
    finished = run(hvdrun, rest, ("well", 1, "backward", 7))
    assert finished.returncode == 1
    for rank in (0, 2):
        assert f"[{rank}] made 6 3 " in finished.stdout
    assert re.search(r"rank 1 ended with 0 at \w+\.py:\d+, and ", finished.stderr)
    assert "rank 1 (localhost:1) was lost" not in finished.stderr


AFTERWARDS = """
def await_end(rank):
    while pathlib.Path(f"/proc/{{pathlib.Path(f'pid.{{rank}}').read_text()}}").exists():
        time.sleep(0.01)
pathlib.Path(f"pid.{{hvd.rank()}}").write_text(str(os.getpid()))
hvd.barrier()
if hvd.rank() == 1:
    await_end(2)
    os.kill(os.getpid(), signal.SIGKILL)
if hvd.rank() == 0:
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    try:
        hvd.allreduce(torch.ones(1), name="needs all")
    except hvd.HorovodInternalError as error:
        print("refused:", error, flush=True)
"""


@pytest.mark.nightly
def test_a_loss_after_the_training_ends_no_worker_and_fails_what_needs_the_lost(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT.format(deaths="()", rest=ELASTIC + AFTERWARDS.format()))
    running = hvdrun.start("-np", "3", "--min-np", "1", "python", "train.py")
    running.stderr.wait_for(r"^hvdrun: rank 1 \(localhost:1\) was lost: killed by SIGKILL", LIMIT_SECONDS)
    hvdrun.write("go", "")
    finished = running.wait(LIMIT_SECONDS)
    assert finished.returncode == 137, finished.stderr
    assert "[0] end 0 3" in finished.stdout
    assert "[0] refused: " in finished.stdout
    assert (
        "rank 1 (localhost:1) was killed by SIGKILL (signal 9); rank 2 (localhost:2) has left (exit code 0)"
        in finished.stdout
    )
    assert "hvdrun then stopped" not in finished.stderr


# Rank 1 fails, and its exit hook waits for what the other does meanwhile.
SLOW_END = """
import atexit, os, pathlib, sys, time
import torch
import worker_runtime.torch as hvd
def wait_for(happens):
    while not happens():
        time.sleep(0.01)
    print("hook done", flush=True)
hvd.init()
(0 if hvd.rank() else pathlib.Path("peer").write_text(str(os.getpid())))
hvd.barrier()
if hvd.rank() == 1:
    peer = pathlib.Path("/proc", pathlib.Path("peer").read_text())
    atexit.register(wait_for, pathlib.Path("on").exists if {is_elastic} else lambda: not peer.exists())
    {failure}
hvd.allreduce(torch.ones(1), name="x")
print("continues with", hvd.size(), flush=True)
pathlib.Path("on").touch()
"""


@pytest.mark.parametrize(
    ("failure", "code", "options"),
    [("raise ValueError('its own')", 1, []), ("sys.exit(3)", 3, ["--min-np", "1", "--no-prefork"])],
)
def test_a_failed_worker_holds_no_other_up_and_is_the_first_cause_however_long_its_exit_hooks_take(
    hvdrun: Launcher, failure: str, code: int, options: list[str]
) -> None:
    is_elastic = "--min-np" in options
    hvdrun.write("train.py", SLOW_END.format(failure=failure, is_elastic=is_elastic))
    finished = hvdrun("-np", "2", "--grace", "600s", *options, "python", "train.py", limit_seconds=LIMIT_SECONDS)
    assert ("[1] hook done" in finished.stdout, finished.returncode) == (True, 0 if is_elastic else code)
    assert finished.stderr.count("] Traceback") == finished.stderr.count("] ValueError: its own")
    if is_elastic:
        assert "[0] continues with 1" in finished.stdout
        assert f"rank 1 (localhost:1) was lost: exit code {code}" in finished.stderr
    else:
        assert f": exit code {code}\n" in finished.stderr.partition("rank 1 on localhost (slot 1) failed first")[2]


HAS_SETS = """
import os, signal
import torch
import worker_runtime.torch as hvd
hvd.init()
kept, shrunk = hvd.add_process_set([0, 2]), hvd.add_process_set([1, 2])
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], process_set=kept)
def step():
    optimizer.zero_grad()
    (weight * (kept.rank() + 1)).sum().backward()
    optimizer.step()
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
step()
hvd.allreduce(torch.ones(1), name="x")
step()
rank = hvd.rank()
print("kept", rank, kept.ranks, kept.rank(), weight.item())
print("shrunk", rank, shrunk.ranks, shrunk.included())
for name, among in ("x", shrunk), (f"of rank {rank}", kept):
    try:
        if among.included():
            hvd.allreduce(torch.ones(1), name=name, process_set=among)
    except hvd.HorovodInternalError as error:
        print(error)
"""
DEADLOCK = (
    "Mismatched operations: every rank waits for another: rank 0 waits for allreduce 'of rank 0' in process set 1; "
    "rank 1 waits for allreduce 'of rank 1' in process set 1. "
)


def test_process_sets_follow_a_loss_and_deadlocks_are_reported_after_it(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", HAS_SETS)
    finished = hvdrun("-np", "3", "--min-np", "1", "--no-prefix", "python", "train.py", limit_seconds=LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stderr
    reported = finished.stdout.splitlines()
    assert {f"kept {rank} [0, 1] {rank} -3.0" for rank in (0, 1)} < set(reported)
    assert {f"shrunk {rank} [1] {rank == 1}" for rank in (0, 1)} < set(reported)
    assert sum(line.startswith(DEADLOCK) for line in reported) == 2
    assert (
        sum(line.startswith("allreduce 'x': process set 2 has lost rank 1 (its rank before") for line in reported) == 1
    )
