"""A real job under fire: strangers at the rendezvous' port change neither its result nor what its user sees."""

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.rendezvous.fire import Fire, burning
from tests.system.launcher import Finished, Launcher, Running

SEED = int(os.environ.get("HVDRUN_FUZZ_SEED", "1"))
IDLE = 1000
STRANGERS = 8
FILES = 1024  # the usual soft limit: not enough for so many connections
STEPS = 300  # some seconds of training

TRAINS = f"""
import os, resource, sys, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print("all files", soft == hard, flush=True)
import torch
import worker_runtime.torch as hvd

for _ in range(3):  # each time a new generation is formed, through the port that is under fire
    hvd.init()
    for step in range({STEPS} // 3):
        total = hvd.allreduce(torch.ones(100), op=hvd.Sum)
        time.sleep(0.01)
    hvd.shutdown()
print("sum", int(total[0]), flush=True)
sys.exit(int(os.environ["EXIT_CODE"]) if os.environ["RANK"] == "1" else 0)
"""


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


class Storm:
    """Strangers at every port that a job opens, from when it opens them on."""

    def __init__(self, hvdrun: Launcher, idle: int) -> None:
        self._hvdrun = hvdrun
        self._idle = idle
        self.fires: dict[tuple[str, int], Fire] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Look for new ports until cancelled."""
        try:
            while True:
                for process in await asyncio.to_thread(self._hvdrun.watch.processes):
                    for listener in process.listens:
                        address, _, port = listener.rpartition(":")
                        if port.isdigit():  # a Unix socket has none
                            self._begin(address.strip("[]").removeprefix("::ffff:"), int(port))
                await asyncio.sleep(0.02)
        finally:
            while pending := {task for task in self._tasks if not task.done()}:  # a timeout may swallow what cancels
                for task in pending:
                    task.cancel()
                await asyncio.wait(pending, timeout=1)

    def _begin(self, address: str, port: int) -> None:
        if (address, port) in self.fires:
            return
        fire = self.fires[address, port] = Fire(address, port, SEED)
        self._tasks |= {asyncio.create_task(fire.burn()) for _ in range(STRANGERS)}
        self._tasks.add(asyncio.create_task(self._hold(address, port)))

    async def _hold(self, address: str, port: int) -> None:
        """Connections on which nothing is said; one at a time, since a socket may take none any more."""
        held = []
        try:
            for _ in range(self._idle):
                with suppress(OSError):
                    async with asyncio.timeout(1):
                        held.append(await asyncio.open_connection(address, port))
            await asyncio.Event().wait()
        finally:
            for _, writer in held:
                writer.transport.abort()


def run_under_fire(hvdrun: Launcher, exit_code: int, idle: int) -> tuple[Finished, Storm]:
    """How the job ended, and what the strangers did."""

    async def story(running: Running) -> tuple[Finished, Storm]:
        storm = Storm(hvdrun, idle)
        following = asyncio.create_task(storm.follow())
        try:
            return await asyncio.to_thread(running.wait), storm
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    hvdrun.write("train.py", TRAINS)
    with few_files():
        running = hvdrun.start("-np", "2", "-v", "python", "train.py", environment={"EXIT_CODE": str(exit_code)})
    return asyncio.run(story(running))


@pytest.mark.nightly
@pytest.mark.parametrize(("exit_code", "idle"), [(7, IDLE), (0, 5 * IDLE)])
def test_a_job_joins_trains_and_ends_with_strangers_at_all_its_ports_as_without(
    hvdrun: Launcher, exit_code: int, idle: int
) -> None:
    finished, storm = run_under_fire(hvdrun, exit_code, idle)
    assert finished.returncode == exit_code, finished.stderr
    lines = [f"[{rank}] {line}" for rank in range(2) for line in ("all files True", "sum 2")]
    assert sorted(finished.stdout.splitlines()) == sorted(lines)
    assert ("rank 1 on localhost (slot 1) failed first" in finished.stderr) == (exit_code != 0)
    assert "handshake" not in finished.stderr.lower()
    assert len(storm.fires) >= 4  # the rendezvous, the sequencer, and gloo's of both workers
    assert sum(len(fire.done) == 6 for fire in storm.fires.values()) >= 2, [fire.done for fire in storm.fires.values()]


def test_strangers_do_not_keep_a_job_from_being_interrupted(hvdrun: Launcher) -> None:
    async def story(running: Running) -> Finished:
        found = await asyncio.to_thread(running.stderr.wait_for, r"the rendezvous listens on .*127\.0\.0\.1:(\d+)", 30)
        async with burning("127.0.0.1", int(found[1]), seed=SEED, strangers=STRANGERS, idle=IDLE):
            running.send(signal.SIGINT)
            return await asyncio.to_thread(running.wait)

    with few_files():
        running = hvdrun.start("-np", "2", "-v", "sleep", "600")
    assert asyncio.run(story(running)).returncode == -signal.SIGINT
