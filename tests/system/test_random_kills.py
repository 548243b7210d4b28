"""kill -9 of a random part of a job at a random moment: nothing is left, whatever it was, detached or not.

`make test` plays one seed, `make nightly` seven more, and `make soak` 200 (HVDRUN_SOAK_RUNS); as many
detached.
"""

import contextlib
import json
import os
import random
import time
from collections.abc import Callable

import pytest

from tests.system.detached import ask
from tests.system.launcher import Launcher
from tests.system.roles import find_agent, find_watchdog, kill
from tests.system.tables import rest_nightly

RUNS = int(os.environ.get("HVDRUN_SOAK_RUNS", "8"))
LONGEST_START_SECONDS = 2.5
# Some seconds of training: workers with a child each, in and out of collectives all the time.
TRAINS = """
import os, subprocess, sys
subprocess.Popen(["sh", "-c", "sleep 600; true"])
subprocess.Popen(["sh", "-c", "sleep 601; true"], start_new_session=True)
if sys.argv[1] == "train":
    import torch
    import worker_runtime.torch as hvd
    hvd.init()
    for step in range(600):
        hvd.allreduce(torch.ones(1000), name="gradient")
else:
    import time
    time.sleep(3)
"""


def find_one(hvdrun: Launcher, words: str, chance: random.Random) -> int | None:
    found = hvdrun.processes(words)
    return chance.choice(found).pid if found else None


PARTS: dict[str, Callable[[Launcher, random.Random], int | None]] = {
    "hvdrun": lambda hvdrun, chance: find_one(hvdrun, " -np 2 --grace", chance),
    "agent": lambda hvdrun, _: find_agent(hvdrun),
    "watchdog": lambda hvdrun, _: find_watchdog(hvdrun),
    "forkserver": lambda hvdrun, chance: find_one(hvdrun, "worker_runtime.startup.forkserver", chance),
    "worker": lambda hvdrun, chance: find_one(hvdrun, "python job.py", chance),
    "child": lambda hvdrun, chance: find_one(hvdrun, "sleep 60", chance),
}


def wait_for_end(hvdrun: Launcher, story: str) -> None:
    """Wait for the end of a detached job, which may be known, or be that of a killed launcher."""
    listed = json.loads(ask(hvdrun, "ps", "--all", "--json").stdout)["jobs"]
    for job in [job for job in listed if str(job["folder"]).startswith(str(hvdrun.state))]:
        ended = ask(hvdrun, "wait", job["job"])
        (known,) = hvdrun.state.glob("hvdrun/[!.]*")
        end = known / "end.json"
        code = json.loads(end.read_text())["exit_code"] if end.exists() else 69
        assert ended.returncode == code, f"{story}\n{ended}"


@pytest.mark.parametrize("seed", rest_nightly(range(RUNS)))
def test_a_random_part_is_killed_and_nothing_is_left(hvdrun: Launcher, seed: int) -> None:
    kill_randomly(hvdrun, seed)


@pytest.mark.parametrize("seed", rest_nightly(range(RUNS)))
def test_a_random_part_of_a_detached_job_is_killed_and_nothing_is_left(hvdrun: Launcher, seed: int) -> None:
    kill_randomly(hvdrun, seed, "--detach")


def kill_randomly(hvdrun: Launcher, seed: int, *words: str) -> None:
    """One story; `words` are further ones of hvdrun."""
    chance = random.Random(seed)  # noqa: S311 - a story, not a secret
    hvdrun.write("job.py", TRAINS)
    kind = "train" if seed % 2 else "sleep"
    victims = chance.sample(sorted(PARTS), k=chance.choice([1, 1, 2]))
    if {"agent", "watchdog"} <= set(victims):
        victims.remove("watchdog")  # each stands in for the other; a test that kills both together must clear up itself
    forks = chance.choice([True, False])
    moment_seconds = chance.uniform(0, LONGEST_START_SECONDS)
    running = hvdrun.start(*words, "-np", "2", "--grace", "1s", "python", "job.py", kind, forks=forks)
    time.sleep(moment_seconds)  # the moment is what is tested, and no event marks it
    for victim in victims:
        pid = PARTS[victim](hvdrun, chance)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                kill(pid)
    running.wait(60)
    story = f"seed {seed}: {kind}{', forked' if forks else ''}, kill {victims} after {moment_seconds:.2f} s"
    if words:
        wait_for_end(hvdrun, story)
    own_words = [line for line in running.stderr.text().splitlines() if not line.startswith(("[", "  "))]
    assert all(line.startswith("hvdrun: ") for line in own_words), f"{story}\n{own_words}"
    left = hvdrun.watch.settle()
    assert not left, f"{story}\n{left}"
