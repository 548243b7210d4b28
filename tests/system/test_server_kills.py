"""kill -9 of the server of a detached job at any moment: the training ends as if nothing had been.

`make test` plays two seeds, `make nightly` 18 more, and `make soak` 200 (HVDRUN_SOAK_RUNS). A seed has a situation:
what the job does when its server is killed.
"""

import os
import random
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.system.detached import ask, find_guardian, find_job, find_server, kill_server
from tests.system.launcher import PRELOAD, Launcher, Running
from tests.system.recording import Recording, read_notes
from tests.system.recovery_scripts.recipe import SAMPLES
from tests.system.roles import kill
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

RUNS = int(os.environ.get("HVDRUN_SOAK_RUNS", "20"))
LIMIT_SECONDS = 100.0
FLUSH_SECONDS = 0.01  # after the death of a worker its exit is being written
STOPPED = 128 + signal.SIGTERM
SCRIPT = """
import os, sys, time
from tests.system.recovery_scripts import train

class Trainer(train.Trainer):
    written = 0

    def train(self, *given):
        super().train(*given)
        time.sleep(0.02)  # others need not train at full speed while a worker starts
        for _ in range({lines}):
            self.written += 1
            sys.stdout.write(f"line {{os.getpid()}} {{self.written}}\\n")
        sys.stdout.flush()
        self.stage.note("written", count=self.written)

train.main(Trainer)
"""
LINE = re.compile(r"\[\d+\] line (\d+) (\d+)")


@dataclass
class Story:
    """A job whose server is about to be killed.

    killed: the workers that were killed.
    """

    hvdrun: Launcher
    running: Running
    chance: random.Random
    killed: set[int]
    code: int = 0

    @property
    def folder(self) -> Path:
        """Where the workers write their notes."""
        return self.hvdrun.directory / "notes"

    def await_training(self) -> None:
        """Wait until both workers train."""

        def do_train() -> bool:
            assert find_guardian(self.hvdrun) is not None, ask(self.hvdrun, "logs", find_job(self.hvdrun))
            return len({note["pid"] for note in read_notes(self.folder) if note["what"] == "step"}) >= 2

        try:
            wait_until(do_train, "training")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{ask(self.hvdrun, 'logs', 'last')}") from None

    def pause(self, seconds: float) -> None:
        """Pass some of this time: the moment is tested, and no event marks it."""
        time.sleep(self.chance.uniform(0, seconds))

    def kill_worker(self) -> None:
        """Kill -9 of one that trains."""
        pids = {note["pid"] for note in read_notes(self.folder) if note["what"] == "enter"} - self.killed
        victim = self.chance.choice(sorted(pids))
        kill(victim)
        self.killed.add(victim)

    def kill_server(self) -> None:
        """Kill -9 of the present server, if there is one."""
        kill_server(self.hvdrun)

    def stop_training(self) -> None:
        """Let the workers come to their end."""
        (self.folder / "stop").touch()


def kill_at_start(story: Story) -> None:
    story.pause(2.0)
    story.kill_server()


def kill_in_training(story: Story) -> None:
    story.await_training()
    story.pause(0.5)
    story.kill_server()


def kill_in_recovery(story: Story) -> None:
    story.await_training()
    story.kill_worker()
    story.pause(FLUSH_SECONDS)
    story.kill_server()


def kill_in_growth(story: Story) -> None:
    """The worker that takes the place of a lost one is started, joins or is taken in."""
    story.await_training()
    story.kill_worker()
    story.pause(3.0)
    story.kill_server()


def kill_twice(story: Story) -> None:
    story.await_training()
    for _ in range(2):
        former = find_server(story.hvdrun)
        story.kill_server()
        await_next_server(story.hvdrun, former)
        story.pause(1.0)


def await_next_server(hvdrun: Launcher, former: int | None) -> None:
    """Wait until another server runs than this one."""
    wait_until(lambda: find_server(hvdrun) not in {None, former}, "another server")


def kill_with_worker_after(story: Story) -> None:
    """A worker is lost while there is no server."""
    story.await_training()
    story.kill_server()
    story.pause(0.3)
    story.kill_worker()


def kill_in_stop(story: Story) -> None:
    story.await_training()
    job = find_job(story.hvdrun)
    story.hvdrun.start_words([sys.executable, "-m", "hvdrun", "stop", job])
    story.pause(1.0)
    story.kill_server()
    if not (story.folder / "stop").exists():
        ask(story.hvdrun, "stop", job)  # for a kill before it had been asked
    story.code = STOPPED


def kill_at_end(story: Story) -> None:
    story.await_training()
    story.stop_training()
    story.pause(1.0)
    story.kill_server()


# By what the job does when its server is killed, with how many lines a worker prints in each step.
SITUATIONS: dict[str, tuple[Callable[[Story], None], int]] = {
    "recovers": (kill_in_recovery, 1),
    "starts": (kill_at_start, 1),
    "prints": (kill_in_training, 2000),
    "trains": (kill_in_training, 1),
    "grows": (kill_in_growth, 1),
    "has lost two servers": (kill_twice, 20),
    "has no server when a worker is lost": (kill_with_worker_after, 1),
    "stops": (kill_in_stop, 1),
    "ends": (kill_at_end, 100),
}


@pytest.mark.parametrize("seed", rest_nightly(range(RUNS), first=2))
def test_a_training_continues_where_its_server_was_killed(hvdrun: Launcher, seed: int) -> None:
    name = list(SITUATIONS)[seed % len(SITUATIONS)]
    act, lines = SITUATIONS[name]
    story = play(hvdrun, act, lines, seed)
    check(story, f"seed {seed}: the job {name}")


def play(hvdrun: Launcher, act: Callable[[Story], None], lines: int, seed: int) -> Story:
    """Start a job, and kill its server."""
    folder = hvdrun.directory / "notes"
    folder.mkdir()
    hvdrun.write("train.py", SCRIPT.format(lines=lines))
    running = hvdrun.start(
        *("--detach", "-np", "2", "--min-np", "1", "--lease", "20s", "python", "train.py", folder, "clip"),
        *("--until", folder / "stop", "--every", "1"),
        forks=True,
        environment={"PYTHONPATH": os.pathsep.join(map(str, (PRELOAD, ROOT)))},
    )
    story = Story(hvdrun, running, random.Random(seed), set())  # noqa: S311 - a story, not a secret
    wait_until(lambda: find_server(hvdrun) is not None)
    following = hvdrun.start_words([sys.executable, "-m", "hvdrun", "logs", "-f", find_job(hvdrun)])
    act(story)
    if story.code == 0:
        story.await_training()
        story.pause(0.5)
        story.stop_training()
    job = find_job(hvdrun)
    waited = hvdrun.start_words([sys.executable, "-m", "hvdrun", "wait", job]).wait(LIMIT_SECONDS)
    logs = ask(hvdrun, "logs", job)
    assert waited.returncode == story.code, f"{waited}\n{logs.stdout[-2000:]}\n{logs.stderr}"
    assert f"exit {story.code}" in ask(hvdrun, "ps", "--all").stdout
    followed = following.wait()
    assert sorted(followed.stdout.splitlines()) == sorted(logs.stdout.splitlines())
    return story


def check(story: Story, what: str) -> None:
    """Every step once, every line once and in order, and no worker was restarted that nobody has killed."""
    notes, job = read_notes(story.folder), find_job(story.hvdrun)
    shown = defaultdict(list)
    log = ask(story.hvdrun, "logs", job)
    for line in log.stdout.splitlines():
        match = LINE.fullmatch(line)
        assert match, f"{what}: {line!r}"
        shown[int(match[1])].append(int(match[2]))
    written = {note["pid"]: note["count"] for note in notes if note["what"] == "written"}
    for pid, numbers in shown.items():
        assert numbers == list(range(1, len(numbers) + 1)), f"{what}: {pid} {_find_wrong(numbers)}"
        if pid not in story.killed and story.code == 0:
            assert len(numbers) == written[pid], what
    begun = {note["pid"] for note in notes if note["what"] == "ready"}
    assert len(begun) <= 2 + len(story.killed), f"{what}\n{log.stderr}"
    recording = Recording(story.folder)
    recording.list_steps()
    if story.code == 0:
        entered = {note["pid"] for note in notes if note["what"] == "enter"}  # a newcomer may be too late for that
        done = {note["pid"] for note in notes if note["what"] == "done"}
        assert done >= entered - story.killed, f"{what}\n{log.stderr}"
        recording.check_replicas()
        recording.check_samples(SAMPLES)
    left = story.hvdrun.watch.settle()
    assert not left, f"{what}\n{left}"


def _find_wrong(numbers: list[int]) -> list[tuple[int, int]]:
    """Where the lines are not in order: the numbers before and after."""
    return [(one, other) for one, other in zip([0, *numbers], numbers, strict=False) if other != one + 1][:5]


# Trains in rounds, the first two of which rank 1 ends; each counts its steps.
ROUNDS = """
import os, signal, sys, time
import torch
import torch.distributed as dist
round_number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
step = int(open("step").read()) if os.path.exists("step") else 0
os.write(1, b"round %d from %d of %d\\n" % (round_number, step, os.getpid()))
while step < 12:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size
    step += 1
    if rank == 1 and round_number < 2 and step == 4 * round_number + 5:
        open(f"dead.{round_number}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    if rank == 0 and step % 4 == 0:
        open("writing", "w").write(str(step))
        os.rename("writing", "step")
os.write(1, b"end %d\\n" % os.getpid())
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("seed", rest_nightly(range(max(1, RUNS // 10))))
def test_a_round_of_restarts_continues_where_the_server_was_killed(hvdrun: Launcher, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a story, not a secret
    hvdrun.write("rounds.py", ROUNDS)
    running = hvdrun.start("--detach", "-np", "2", "--max-restarts", "3", "python", "rounds.py")
    for number in range(2):
        wait_until((hvdrun.directory / f"dead.{number}").exists, f"the death in round {number}")
        time.sleep(chance.uniform(0, chance.choice([FLUSH_SECONDS, 0.5, 2.0])))  # the moment is what is tested
        kill_server(hvdrun)
    assert running.wait().returncode == 0
    job = find_job(hvdrun)
    assert ask(hvdrun, "wait", job).returncode == 0
    log = ask(hvdrun, "logs", job)
    found = re.findall(r"\[(\d)\] round (\d) from (\d) of \d+", log.stdout)
    assert sorted(found) == sorted((rank, str(each), str(4 * each)) for each in range(3) for rank in "01"), log
    assert len(re.findall("end", log.stdout)) == 2
