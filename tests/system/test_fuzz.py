"""A real job under fire: strangers at its ports change neither its result nor what its user sees."""

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.rendezvous.fire import burning
from tests.system.attack import SEED, SILENT, STRANGERS
from tests.system.launcher import Finished, Launcher, Running
from tests.system.leftovers import LeftProcess
from tests.system.storm import NOBODY, TRAINS, Storm, list_targets, start_attacker

FILES = 1024  # the usual soft limit: not enough for so many connections


@contextmanager
def few_files() -> Iterator[None]:
    """What is started meanwhile may open only so many files, unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4 * FILES:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * FILES), hard))


def is_worker(process: LeftProcess) -> bool:
    """Whether the process runs the script."""
    return process.command.endswith("python train.py") and "hvdrun" not in process.command


def find_doors(hvdrun: Launcher) -> set[str]:
    """Where rank 0 listens while it waits for rank 1: for gloo, and for a probe of who reaches whom."""
    workers = filter(is_worker, hvdrun.watch.processes())
    return next((targets for worker in workers if len(targets := list_targets([worker])) > 1), set())


@pytest.mark.nightly
@pytest.mark.parametrize(("user", "exit_code"), [((), 7), ((NOBODY,), 0)], ids=["own user", "another user"])
def test_a_job_joins_trains_and_ends_with_strangers_at_all_its_ports_as_without(
    hvdrun: Launcher, user: tuple[str, ...], exit_code: int
) -> None:
    if user and os.geteuid() != 0:
        pytest.skip("only root can start a program as another user")
    hvdrun.write("train.py", TRAINS)
    for folder in (hvdrun.watch.temporary, hvdrun.watch.temporary.parent):
        folder.chmod(0o755)  # what keeps others out is to be of the job's own making
    with Storm(start_attacker(*user), lambda: list_targets(hvdrun.watch.processes())) as storm:
        with few_files():
            running = hvdrun.start("-np", "2", "-v", "python", "train.py", environment={"EXIT_CODE": str(exit_code)})
        storm.await_idle(lambda: find_doors(hvdrun))
        hvdrun.write("go", "")
        finished = running.wait()
    assert finished.returncode == exit_code, finished.stderr
    lines = [f"[{rank}] {line}" for rank in range(2) for line in ("all files True", "sum 2")]
    assert sorted(finished.stdout.splitlines()) == sorted(lines)
    assert ("rank 1 on localhost (slot 1) failed first" in finished.stderr) == (exit_code != 0)
    assert "handshake" not in finished.stderr.lower()
    storm.check(3)  # the rendezvous, the sequencer, and gloo's of rank 0
    # The agent's socket serves the workers of its user. That of hvdrun answers nothing but a question.
    assert storm.find_let_in() == (0 if user else 1)


FORMS_TWICE = """
import pathlib, resource
import torch
import worker_runtime.torch as hvd

for generation in range(2):
    hvd.init()
    print("formed", *resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)
    while not hvd.broadcast_object(pathlib.Path("go").exists()):
        total = hvd.allreduce(torch.ones(100), op=hvd.Sum)
    hvd.shutdown()
"""


@pytest.mark.nightly
def test_a_job_with_a_hard_limit_of_few_files_trains_on_and_forms_again(hvdrun: Launcher) -> None:
    """Strangers come to gloo's ports when the group stands: see the README's `Security` for those that come sooner."""
    hvdrun.write("train.py", FORMS_TWICE)
    standing: set[str] = set()

    def find_targets() -> set[str]:
        processes = hvdrun.watch.processes()
        return list_targets(process for process in processes if not is_worker(process)) | standing

    def find_port(words: str) -> set[str]:
        return {target for target in list_targets(hvdrun.processes(words)) if "/" not in target}

    with Storm(start_attacker(), find_targets) as storm:
        before = ("prlimit", f"--nofile={FILES}:{FILES}")
        running = hvdrun.start("-np", "2", "python", "train.py", before=before)
        for rank in range(2):
            running.stdout.wait_for(rf"^\[{rank}\] formed {FILES} {FILES}$", 60)
        standing |= list_targets(filter(is_worker, hvdrun.watch.processes()))
        for words in ("-m hvdrun ", "-m worker_runtime.coordination.sequencer "):
            storm.await_idle(partial(find_port, words))
        hvdrun.write("go", "")
        finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")
    assert len(finished.stdout.splitlines()) == 4
    assert len(standing) == 2
    assert all(storm.done[port][SILENT] == 0 for port in standing)


def test_strangers_do_not_keep_a_job_from_being_interrupted(hvdrun: Launcher) -> None:
    async def story(running: Running) -> Finished:
        found = await asyncio.to_thread(running.stderr.wait_for, r"the rendezvous listens on .*127\.0\.0\.1:(\d+)", 30)
        async with burning("127.0.0.1", int(found[1]), seed=SEED, strangers=STRANGERS, idle=1000):
            running.send(signal.SIGINT)
            return await asyncio.to_thread(running.wait)

    with few_files():
        running = hvdrun.start("-np", "2", "-v", "sleep", "600")
    assert asyncio.run(story(running)).returncode == -signal.SIGINT
