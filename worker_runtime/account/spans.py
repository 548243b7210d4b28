"""The parts of a process's time as rows of a timeline, while one is recorded.

A step has a span, and in it those of its parts, one after the other. The program's own code is forward and backward up
to the last call that blocks, and the optimizer after it.
"""

from collections.abc import Callable

from worker_runtime.rendezvous import Part
from worker_runtime.timeline.trace import CHECKPOINT, RECOVERIES_ROW, STEPS_ROW

# Notes a span: its row among those of the rank, its name, and when it began and ended by the monotonic clock.
NoteSpan = Callable[[str, str, float, float], None]

_OWN_CODE, _OPTIMIZER = "forward+backward", "optimizer"
SHORTEST_SECONDS = 1e-4  # shorter parts get no span: many spans would make a short step longer
_RECOVERY = "recovery"
_NAMES: dict[int, str] = {
    Part.START: "start",
    Part.WAITING: "waiting",
    Part.COMMUNICATION: "running",
    Part.COMMIT: "commit",
    Part.CHECKPOINT: CHECKPOINT,
    Part.RECOVERY: _RECOVERY,
}
_PENDING, _WAITING, _REPEATED = int(Part.PENDING), int(Part.WAITING), int(Part.REPEATED)
_BLOCKED = frozenset({int(Part.WAITING), int(Part.COMMUNICATION)})
_IN_STEPS = _BLOCKED | {_PENDING, _REPEATED}


class Spans:
    """Makes spans of the changes of an account.

    Args:
        note: notes each.

    late: the rank that the next wait to end was for; -1 if that is not known.
    """

    def __init__(self, note: NoteSpan) -> None:
        self.note = note
        self.late = -1
        self._step_began = 0.0
        self._own: tuple[float, float] | None = None  # the latest own code of the step, which has no name yet
        self._has_blocked = False
        self._covering = 0, 0.0, 0.0  # a part that covers calls: its number, its begin, its end so far

    def add(self, part: int, began: float, ended: float) -> None:
        """Add a part that has ended."""
        if part not in _IN_STEPS:
            self._forget_step()
            if self._covering[0] == part and self._covering[2] == began:
                began = self._covering[1]
            else:
                self._put_covering()
            self._covering = part, began, ended
            return
        self._put_covering()
        self._step_began = self._step_began or began
        if part == _PENDING:
            self._own = began, ended
        elif part in _BLOCKED:
            self._put_own(_OWN_CODE)
            self._has_blocked = True
            name = _NAMES[part]
            if part == _WAITING and self.late >= 0:
                name += f" for rank {self.late}"
            self.late = -1
            self._put(name, began, ended)

    def end_step(self, number: int, at: float, *, is_repeated: bool) -> None:
        """Add the step that ends."""
        self._put_covering()
        self._put_own(_OPTIMIZER if self._has_blocked else _OWN_CODE)
        name = f"step {number}"
        if is_repeated:
            name += " (repeated)"
        if self._step_began:
            self.note(STEPS_ROW, name, self._step_began, at)
        self._forget_step()

    def add_fill(self, name: str, began: float, ended: float) -> None:
        """Add the time in which a bucket has filled. For any thread."""
        if ended - began >= SHORTEST_SECONDS:
            self.note(name, "filling", began, ended)

    def add_recovered(self, began: float, ended: float) -> None:
        """Add the time for which a call was blocked in a recovery: a part of the step."""
        self._put(_RECOVERY, began, ended)

    def add_recovery(self, began: float, ended: float) -> None:
        """Add a whole recovery, whatever the program has done meanwhile."""
        self.note(RECOVERIES_ROW, _RECOVERY, began, ended)

    def _forget_step(self) -> None:
        self._step_began, self._own, self._has_blocked = 0.0, None, False

    def _put_covering(self) -> None:
        (part, began, ended), self._covering = self._covering, (0, 0.0, 0.0)
        if part in _NAMES:
            self._put(_NAMES[part], began, ended)

    def _put_own(self, name: str) -> None:
        own, self._own = self._own, None
        if own is not None:
            self._put(name, *own)

    def _put(self, name: str, began: float, ended: float) -> None:
        if ended - began >= SHORTEST_SECONDS:
            self.note(STEPS_ROW, name, began, ended)
