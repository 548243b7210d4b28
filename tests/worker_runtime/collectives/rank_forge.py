"""Forks the ranks of a test from a process that has imported torch, and does nothing else with it."""

import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
import torch

from tests.worker_runtime.collectives.worlds import World

LIMIT_SECONDS = 20


def play(function: Callable[[World], object], size: int, way: str) -> list[tuple[bool, object]]:
    """Call `function(world)` on each rank of a new world; whether it returned, and what (or the traceback).

    Every rank is a process that lives for this call alone.
    """
    pids, outcomes = [], []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as results:
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                play_rank(function, (rank, size, Path(folder, "store")), way, Path(results, str(rank)))
            pids.append(pid)
        for rank, pid in enumerate(pids):
            _, status = os.waitpid(pid, 0)
            if status:
                outcomes.append((False, f"ended with {os.waitstatus_to_exitcode(status)}"))
            else:
                outcomes.append(cloudpickle.loads(Path(results, str(rank)).read_bytes()))
    return outcomes


def play_rank(function: Callable[[World], object], place: tuple[int, int, Path], way: str, result: Path) -> None:
    """Never returns, nor raises: what the forge holds, the folders of all ranks too, is not this process' to end."""
    signal.alarm(LIMIT_SECONDS)  # ends a process that hangs
    try:
        world = World(*place)
        world.choose(way)
        try:
            outcome = (True, function(world))
        finally:
            world.leave()
    except BaseException:  # noqa: BLE001 - the test is to see it
        outcome = (False, traceback.format_exc())
    status = 1
    try:
        result.write_bytes(cloudpickle.dumps(outcome))
        status = 0
    except BaseException:  # noqa: BLE001 - told, and the forge tells that this rank has none
        traceback.print_exc()
    os._exit(status)


def main() -> None:
    """Serve until the other end is closed."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    commands = Connection(int(sys.argv[1]))
    while True:
        try:
            function, size, way = cloudpickle.loads(commands.recv_bytes())
        except EOFError:
            return
        commands.send_bytes(cloudpickle.dumps(play(function, size, way)))


if __name__ == "__main__":
    main()
