"""Strangers at every port of a job, from when it is opened on: `attack.py` does it, from where a test lets it begin."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Self

from tests.house.sources import ROOT
from tests.system.attack import LET_IN, SILENT
from tests.system.leftovers import LeftProcess
from tests.waiting import LIMIT_SECONDS, wait_until

IDLE = 5000
STEPS = 50  # of each of two generations
# Until the file `go` exists, rank 0 listens for rank 1.
TRAINS = f"""
import os, pathlib, resource, sys, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print("all files", soft == hard, flush=True)
import torch
import worker_runtime.torch as hvd
from worker_runtime.groups.gloo import Gloo

def make_late(self, *arguments):
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return make(self, *arguments)

make = Gloo.make
if os.environ["RANK"] == "1":
    Gloo.make = make_late
for generation in range(2):
    hvd.init()
    for step in range({STEPS}):
        total = hvd.allreduce(torch.ones(100), op=hvd.Sum)
        time.sleep(0.01)
    if generation == 1:
        print("sum", int(total[0]), flush=True)
        hvd.barrier()
    hvd.shutdown()
sys.exit(int(os.environ.get("EXIT_CODE", "0")) if os.environ["RANK"] == "1" else 0)
"""
# As another user: nobody, on every Linux.
NOBODY = "65534"
ATTACK = ("-m", "tests.system.attack", str(IDLE))
KINDS_OF_ATTACKS = 9  # of what an attacker does at a port
_PAUSE_SECONDS = 0.02

Target = str  # `ADDRESS PORT`, or the path of a Unix socket


class Storm:
    """One program that attacks all targets; a context manager, whose end ends it.

    attacker: the program, whose standard input and output are pipes.
    find: the targets that there are now.
    targets: the addresses that are attacked.
    done: of each target what has happened how often, by the last report: when idle connections stood, and at the end.
    """

    def __init__(self, attacker: "subprocess.Popen[bytes]", find: Callable[[], Iterable[Target]]) -> None:
        self._attacker = attacker
        self._find = find
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=each, name="storm") for each in (self._follow, self._read)]
        self.targets: set[Target] = set()
        self.done: dict[Target, Counter[str]] = {}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ending.set()
        with self._attacker:
            for thread in self._threads:
                thread.join(LIMIT_SECONDS)
            self._attacker.kill()
        assert kind is not None or set(self.done) == self.targets, "an attacker has failed: see its standard error"

    def await_idle(self, find: Callable[[], set[Target]]) -> None:
        """Wait until all idle connections to one of these targets stand."""
        wait_until(lambda: not find().isdisjoint(self.done), "a storm")

    def check(self, least: int) -> None:
        """So many ports had to stand all of it."""
        whole = [done for done in self.done.values() if done[SILENT] > 0.9 * IDLE and len(+done) == KINDS_OF_ATTACKS]
        assert len(whole) >= least, self.done

    def find_let_in(self) -> int:
        """How many Unix sockets have let the attacker in."""
        return sum(done[LET_IN] for done in self.done.values())

    def _follow(self) -> None:
        assert self._attacker.stdin is not None
        with self._attacker.stdin as stdin:
            while not self._ending.wait(_PAUSE_SECONDS):
                for target in set(self._find()) - self.targets:
                    self.targets.add(target)
                    stdin.write(f"{target}\n".encode())
                    stdin.flush()

    def _read(self) -> None:
        assert self._attacker.stdout is not None
        for line in self._attacker.stdout:
            target, done = json.loads(line)
            self.done[target] = Counter(done)


def list_targets(processes: Iterable[LeftProcess]) -> set[Target]:
    """All on which these processes listen."""
    return {name_target(listener) for process in processes for listener in process.listens}


def name_target(listener: str) -> Target:
    """Of what is named `ADDRESS:PORT`, or a Unix socket's path."""
    address, _, port = listener.rpartition(":")
    is_port = port.isdigit() and "/" not in listener
    return f"{address.removeprefix('::ffff:')} {port}" if is_port else listener


def start_attacker(*user: str) -> "subprocess.Popen[bytes]":
    """On this machine."""
    return subprocess.Popen([sys.executable, *ATTACK, *user], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
