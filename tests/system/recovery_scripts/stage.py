"""Records the place in its step that a worker has reached, and kills the worker at a planned place.

The place is a byte of a file that is mapped into memory, so that the test reads it even after the worker was killed.
"""

import json
import logging
import mmap
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from tests.system.evidence import offer_stacks
from worker_runtime.collectives.agreements import CommitRound
from worker_runtime.coordination.group import Group
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.operation import Members, Operation
from worker_runtime.coordination.ordering.requests import Release
from worker_runtime.engine.engine import Engine
from worker_runtime.engine.generation import Generation
from worker_runtime.engine.succession import Succession
from worker_runtime.membership import formation

# "reduction": the worker waits for its gradients. "commit": the worker is about to request the commit round. "asked":
# the round is requested. "committed": the response has come. "synchronized": the optimizer has synchronized, and the
# scaler has not unscaled yet. "between": both have. "clipped": the gradients are clipped, before the step. "end": one
# optimizer has stepped. "stepped": all optimizers have. "forming": at any other place, while the group is formed anew.
# "started": at any other place, before this worker starts a released collective; the first one in step 0 connects a
# group of NCCL. "saving": the worker commits its state. "syncing": the worker receives the state of rank 0.
PLACES = (
    *("start", "compute", "backward", "reduction", "commit", "asked", "committed", "between", "forming", "end"),
    *("stepped", "synchronized", "clipped", "started", "saving", "syncing"),
)
_LOG = logging.getLogger("hvd.recovery")
_FORMING = 1  # the index of the byte that is 1 while the group is formed anew


class Stage:
    """Notes what this worker does, and ends it where the plan says.

    Args:
        folder: for the notes, one file of a process.
        plan: the planned deaths, each "ORIGIN:STEP:PLACE" or "ORIGIN:STEP:PLACE:TIME". ORIGIN is an original rank; TIME
            counts the visits of the place in this step, from 1. Only the first process that comes there dies.
        number: the signal by which to die.
    """

    def __init__(self, folder: Path, plan: list[str], number: signal.Signals = signal.SIGKILL) -> None:
        self.origin = -1
        self.step = 0
        self._folder = folder
        self._plan = [read_death(death) for death in plan]
        self._number = number
        self._times = Counter[tuple[int, str]]()  # the visits of each place in each step
        self._notes = (folder / f"{os.getpid()}.notes").open("w", buffering=1, encoding="utf-8")
        self._writing = threading.Lock()
        path = folder / f"{os.getpid()}.place"
        path.write_bytes(b"\0\0")
        with path.open("r+b") as file:
            self._place = mmap.mmap(file.fileno(), 2)
        offer_stacks(folder)
        _LOG.setLevel(logging.DEBUG)
        log = logging.FileHandler(folder / f"{os.getpid()}.log")
        log.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        _LOG.addHandler(log)
        self._watch_runtime()

    def note(self, what: str, **more: object) -> None:
        """Write something down; from any thread."""
        line = json.dumps({"what": what, "at": time.monotonic(), "origin": self.origin, **more})
        with self._writing:
            self._notes.write(f"{line}\n")

    def enter(self, origin: int, step: int) -> None:
        """The training begins, or begins again, with the members that are connected now."""
        self.origin, self.step = origin, step
        self._place[_FORMING] = 0

    def come_to(self, place: str) -> None:
        """The worker stands there now, unless it is killed."""
        self._place[0] = PLACES.index(place)
        self._die_at(place)

    def _die_at(self, place: str) -> None:
        self._times[self.step, place] += 1
        here = (self.origin, self.step, place, self._times[self.step, place])
        for death in self._plan:
            if death == here and self._is_first("-".join(map(str, death))):
                os.kill(os.getpid(), self._number)

    def _is_first(self, name: str) -> bool:
        """Whether no process has died by this entry of the plan before."""
        try:
            (self._folder / f"{name}.dead").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _watch_runtime(self) -> None:
        """Replace functions of the runtime, so that they record the places inside them."""
        stage, dies_asked = self, any(place == "asked" for _, _, place, _ in self._plan)
        suspend, resume, commit = Succession.suspend, Succession.resume, Engine.complete_step
        start = Generation.start
        form: Callable[..., Group | None] = getattr(formation, "form")  # noqa: B009 - it is imported there

        def note_suspend(succession: Succession, reason: str) -> None:
            stage._place[_FORMING] = 1
            suspend(succession, reason)

        def note_resume(succession: Succession, group: Group | None, link: Link | None) -> None:
            resume(succession, group, link)
            stage._place[_FORMING] = 0

        def note_commit(engine: Engine, among: Members) -> None:
            stage.come_to("commit")
            if dies_asked and among.size > 1:  # a single member asks no other
                handle = engine.submit(CommitRound(among, engine.steps.rounds[among.number] + 1), at_once=True)
                stage.come_to("asked")
                engine.wait(handle)
            else:
                commit(engine, among)
            stage.come_to("committed")

        def note_start(generation: Generation, operation: Operation[object], release: Release) -> object:
            if stage.origin >= 0:  # not at first
                stage._die_at("started")
            return start(generation, operation, release)

        @wraps(form)
        def note_form(*given: Any, **named: Any) -> Group | None:
            if stage.origin >= 0:  # not at first
                stage._place[_FORMING] = 1
                stage._die_at("forming")
            return form(*given, **named)

        replace: Callable[[object, str, Any], None] = setattr
        replace(Succession, "suspend", note_suspend)
        replace(Succession, "resume", note_resume)
        replace(Engine, "complete_step", note_commit)
        replace(Generation, "start", note_start)
        replace(formation, "form", note_form)


def read_death(word: str) -> tuple[int, int, str, int]:
    """An original rank, a step, a place, and at which time in this step."""
    origin, step, place, *time_ = word.split(":")
    return int(origin), int(step), place, int(time_[0]) if time_ else 1


def read_place(folder: Path, pid: int) -> str:
    """Where a worker stands, or stood when it died."""
    place, is_forming = (folder / f"{pid}.place").read_bytes()
    return "forming" if is_forming else PLACES[place]
