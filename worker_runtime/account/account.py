"""Counts the seconds of each part of this process's time.

One thread is the writer: the one that has called `init()`, or the first one that trains. The time of other threads is
not counted. Between two calls that block, the program runs its own code. That time becomes compute when a step ends. A
step lasts from the end of the one before to the end of its own `step()`, with all that the program does there, such as
loading its data. The first step begins with the last call that has blocked before it, such as `broadcast_parameters()`.
What was before belongs to the start. After the last step nothing is compute.

Another thread notices a recovery. It also notices the end of one in which the program continues without an exception.
It notes these times, and the writer counts them when it returns from its call. What the program computes meanwhile is
no part of the recovery.

A call that blocks waits, until the last rank has asked for the operation, and then communicates. Where this rank was
the last itself, it only communicates.
"""

from pathlib import Path
from threading import get_ident
from time import monotonic
from types import TracebackType

from worker_runtime.account.memory import make_memory, map_memory
from worker_runtime.account.recoveries import Progress, RecoveryTimes
from worker_runtime.account.spans import NoteSpan, Spans
from worker_runtime.rendezvous import (
    BEGAN,
    LAYOUT,
    LAYOUT_NUMBER,
    MOST_RANKS,
    PRESENT,
    REPEATED_STEPS,
    SINCE,
    STEPS,
    WAITED_SECONDS,
    WAITED_STEPS,
    Part,
)

# Plain numbers: an attribute of an enumeration takes longer to find.
_PENDING, _START, _COMPUTE = int(Part.PENDING), int(Part.START), int(Part.COMPUTE)
_WAITING, _COMMUNICATION, _IDLE = int(Part.WAITING), int(Part.COMMUNICATION), int(Part.IDLE)
_RECOVERY, _REPEATED = int(Part.RECOVERY), int(Part.REPEATED)
_NOBODY = -1


class Account:
    """The account of one process. It counts from `open` to `end`.

    step: a context in which an optimizer takes its step, which ends there unless it raises.
    """

    def __init__(self) -> None:
        self._writer = 0  # the thread; 0 while nothing is counted
        self._memory = make_memory()
        self._part = _START  # the present one
        self._since = 0.0
        self._cover = 0  # the part to which all is counted; 0 for none
        self._has_optimizer = False  # which takes the steps
        self._has_stepped = False
        self._late = _NOBODY  # the rank for which this step has waited longest
        self._late_seconds = 0.0
        self._progress = Progress()
        self._recoveries = RecoveryTimes(self._memory)
        self._failed_at = 0.0  # when the program had its exception
        self._recovers_since = 0.0  # when the present one of a recovery's three parts has begun
        self._interrupted_at = 0.0  # written by the recovery's thread
        self._resumed: tuple[float, int] | None = None  # when and in which generation; written by the recovery's thread
        self._spans: Spans | None = None  # while a timeline is recorded
        self.step = Step(self)

    def open(self, path: Path | None) -> None:
        """Count to the start from now on.

        Args:
            path: the file that the agent reads; a program that ran before in this worker may have begun it. None for no
                file.
        """
        if self._writer:
            self.cover(_START)
            return
        memory = self._memory = map_memory(path)
        now = self._since = monotonic()
        if memory[LAYOUT] == LAYOUT_NUMBER:
            memory[_START] += max(0.0, now - memory[SINCE])
        else:
            memory[BEGAN] = now
        memory[SINCE] = now
        memory[PRESENT] = self._part = _START
        memory[LAYOUT] = LAYOUT_NUMBER
        self._has_optimizer = self._has_stepped = False
        self._progress = Progress()
        self._recoveries = RecoveryTimes(memory)
        self._writer = get_ident()
        self._cover = _START

    def end(self) -> None:
        """Note that the program has ended. What follows is idle."""
        if self._writer:
            self._change(_IDLE)
            self._writer = 0

    def abandon(self) -> None:
        """Count nothing in a forked child: the memory is the parent's."""
        self._writer = 0
        self._spans = None
        self._memory = make_memory()
        self._recoveries = RecoveryTimes(self._memory)

    def enter(self, part: int) -> None:
        """Begin to block."""
        if get_ident() == self._writer:
            self._change(self._cover or part)

    def leave(self) -> None:
        """Return to the program's own code."""
        if get_ident() == self._writer:
            self._change(self._cover or _PENDING)

    def leave_wait(self, last: int, rank: int) -> None:
        """Return to the program's own code after a wait for other ranks.

        Args:
            last: the rank that was the last to ask; -1 if that is not known.
            rank: this rank.
        """
        if get_ident() != self._writer:
            return
        if self._interrupted_at:
            self._split()
        if self._part == _WAITING:
            if last == rank:
                self._part = _COMMUNICATION
            elif last >= 0:
                self._note_late(last, monotonic() - self._since)
        self._change(self._cover or _PENDING)

    def covering(self, part: int) -> "Cover":
        """A context in which all time is counted to one part, also that of calls that block."""
        return Cover(self, part)

    def note_optimizer(self) -> None:
        """Note that an optimizer was made distributed: what was before it, with its imports, belongs to the start."""
        if get_ident() == self._writer and not self._has_optimizer:
            self._change(self._cover or _PENDING)
            self.settle_start()

    def begin_step(self) -> None:
        """Note that an optimizer begins its step."""
        if not self._has_optimizer and self._writer:
            self._writer = get_ident()
            self.settle_start()
            self._has_optimizer = True

    def end_step(self) -> None:
        """Note that a step has ended."""
        if get_ident() != self._writer:
            return
        self._change(self._cover or _PENDING)
        memory = self._memory
        seconds, memory[_PENDING] = memory[_PENDING], 0.0
        memory[_COMPUTE] += seconds
        memory[STEPS] += 1
        self._has_stepped = True
        is_repeated = self._progress.count_step()
        if self._spans is not None:
            self._spans.end_step(int(memory[STEPS]), self._since, is_repeated=is_repeated)
        if is_repeated:
            memory[REPEATED_STEPS] += 1
            if not self._progress.repeats:
                self._end_replay()
        if self._late != _NOBODY:
            memory[WAITED_STEPS + self._late] += 1
            self._late, self._late_seconds = _NOBODY, 0.0

    def note_commit(self) -> None:
        """Note that the program has committed its state, which ends a step where no optimizer of ours takes steps."""
        if not self._has_optimizer:
            self.end_step()
        if get_ident() == self._writer:
            self._progress.note_commit()

    def record(self, note: NoteSpan | None) -> None:
        """Note spans for a timeline from now on; None: no longer."""
        self._spans = None if note is None else Spans(note)

    def begin_fill(self) -> float:
        """Note that a bucket has its first gradient; return when, 0 where no timeline is recorded. For any thread."""
        if self._spans is None:
            return 0.0
        return monotonic()

    def end_fill(self, name: str, began: float) -> None:
        """Note that a bucket is full. For any thread."""
        spans = self._spans
        if spans is not None and began:
            spans.add_fill(name, began, monotonic())

    def settle_start(self) -> None:
        """Count to the start the time before the last call that has blocked, unless there was a step before."""
        memory = self._memory
        if get_ident() == self._writer and not self._has_stepped:
            seconds, memory[_PENDING] = memory[_PENDING], 0.0
            memory[_START] += seconds

    def begin_function(self) -> None:
        """Note that a function begins that can be restarted. Until it trains, all belongs to the start."""
        self.cover(_START)

    def begin_recovery(self) -> None:
        """Note that the function was interrupted by an exception; all belongs to the recovery until it trains again."""
        if get_ident() != self._writer:
            return
        self._end_replay()
        if self._cover != _RECOVERY:
            self._failed_at = self._recovers_since = self._interrupted_at or monotonic()
            self._interrupted_at, self._resumed = 0.0, None
            self.cover(_RECOVERY)

    def note_formed(self, generation: int) -> None:
        """Note that the generation is connected in which the function restarts."""
        if get_ident() == self._writer:
            now = monotonic()
            self._recoveries.add(generation, now - self._recovers_since)
            self._recovers_since = now

    def note_restored(self) -> None:
        """Note that the state is that of the last commit: the steps since then are repeated."""
        if get_ident() == self._writer:
            self._progress.note_restored()

    def begin_training(self) -> None:
        """Note that the function has its state, and trains from now on."""
        if get_ident() != self._writer:
            return
        self._interrupted_at, self._resumed = 0.0, None  # these were interruptions of this recovery
        if self._cover == _RECOVERY:
            now = monotonic()
            self._recoveries.note_state(now - self._recovers_since)
            if self._spans is not None:
                self._spans.add_recovery(self._failed_at, now)
            self._recovers_since = now
            self.cover(_REPEATED if self._progress.repeats else 0)
        else:
            self._progress.note_commit()  # the state is saved when it is synchronized
            self.cover(0)
            self.settle_start()

    def end_function(self) -> None:
        """Note that the function has ended."""
        if get_ident() == self._writer:
            self._end_replay()
            self.cover(0)

    def note_interrupted(self) -> None:
        """Note that the generation was interrupted. For the recovery's thread."""
        if not self._interrupted_at:
            self._interrupted_at = monotonic()

    def note_resumed(self, generation: int) -> None:
        """Note that the program's operations continue in this generation. For the recovery's thread."""
        self._resumed = monotonic(), generation

    def cover(self, part: int) -> int:
        """Count all time to one part from now on; 0 ends that. Return the part before."""
        former = self._cover
        if get_ident() == self._writer:
            self._cover = part
            self._change(part or _PENDING)
        return former

    def _change(self, part: int) -> None:
        """Add the seconds since the last change to the present part, and begin another one."""
        if self._interrupted_at:
            self._split()
        now = monotonic()
        memory, former = self._memory, self._part
        memory[PRESENT] = self._part = part
        memory[SINCE] = now
        memory[former] += now - self._since
        if self._spans is not None:
            self._spans.add(former, self._since, now)
        self._since = now

    def _split(self) -> None:
        """Count to a recovery the time for which this thread was blocked in it; the wait before is for no rank."""
        began, resumed = self._interrupted_at, self._resumed
        ended = monotonic() if resumed is None else resumed[0]
        memory, part = self._memory, self._part
        if part in {_WAITING, _COMMUNICATION} and ended > self._since:
            began_here = max(began, self._since)
            memory[part] += began_here - self._since
            memory[_RECOVERY] += ended - began_here
            if self._spans is not None:
                self._spans.add(part, self._since, began_here)
                self._spans.add_recovered(began_here, ended)
            self._since = ended
        if resumed is not None:
            self._interrupted_at, self._resumed = 0.0, None
            self._recoveries.add(resumed[1], resumed[0] - began)
            if self._spans is not None:
                self._spans.add_recovery(began, resumed[0])

    def _end_replay(self) -> None:
        if self._cover == _REPEATED:
            self._recoveries.note_replay(monotonic() - self._recovers_since)
            self.cover(0)

    def _note_late(self, rank: int, seconds: float) -> None:
        if self._spans is not None:
            self._spans.late = rank
        if rank < MOST_RANKS:
            self._memory[WAITED_SECONDS + rank] += seconds
            if seconds > self._late_seconds:
                self._late, self._late_seconds = rank, seconds


class Step:
    """See `Account.step`.

    Args:
        account: counts the step.
    """

    __slots__ = ("_account",)

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> None:
        self._account.begin_step()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._account.end_step()


class Cover:
    """See `Account.covering`.

    Args:
        account: counts the time.
        part: the number of the part that the time belongs to.
    """

    __slots__ = ("_account", "_former", "_part")

    def __init__(self, account: Account, part: int) -> None:
        self._account = account
        self._part = part
        self._former = 0

    def __enter__(self) -> None:
        self._former = self._account.cover(self._part)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._account.cover(self._former)
