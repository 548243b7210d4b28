"""Prints what the core logs about a job, and in the end why the job failed."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hvdrun.console.console import Console
from hvdrun.console.page import Page, describe_ranks
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.messages import Level, Log
from rendezvous.core.model import Worker
from rendezvous.core.outcome import TEMPORARY_FAILURE, Cause, Outcome
from rendezvous.core.state import State

PRINTED_LOSSES = 5  # losses of one kind that are printed one by one in this time:
COUNT_SECONDS = 60.0  # after it, one sentence counts the further losses
_SUM_UP_SECONDS = 1.0  # between two looks whether there is something to sum up
_HOPELESS = frozenset({Cause.STATE_LOST, Cause.FAILS_AGAIN})
_PAGE_LOSSES = 5  # the last losses, which the page of a failure names


class LossCounter:
    """Counts losses that differ only in the host: the first ones are printed, the others summed up after a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self.counted: set[str] = set()  # the hosts whose last loss was not printed

    def note(self, host: str, sentence: str) -> bool:
        """Count the loss of a host; whether to print the sentence."""
        now = self._clock()
        kind = self._kinds.setdefault(re.sub(rf"(?<![\w.-]){re.escape(host)}\b", "", sentence), _Kind(now))
        if not kind.counted and now - kind.since >= COUNT_SECONDS:
            kind.printed, kind.since = 0, now
        kind.printed += 1
        if kind.printed <= PRINTED_LOSSES:
            self.counted.discard(host)
            return True
        self.counted.add(host)
        kind.counted += 1
        kind.last = sentence
        return False

    def sum_up(self, *, is_last: bool = False) -> Iterator[str]:
        """One sentence for each kind whose losses were counted long enough, or nothing follows (`is_last`)."""
        now = self._clock()
        for kind in self._kinds.values():
            if kind.counted and (is_last or now - kind.since >= COUNT_SECONDS):
                losses = "once more" if kind.counted == 1 else f"{kind.counted} times more"
                yield f"this has happened {losses}, the last time: {kind.last}"
                kind.counted, kind.since = 0, now


@dataclass(slots=True)
class _Kind:
    """Losses that differ only in the host.

    since: when the first loss was printed, or the last sum.
    printed: how many losses have come since then, up to the first that was only counted.
    counted: how many losses no sum has named yet; last: the last of these.
    """

    since: float
    printed: int = 0
    counted: int = 0
    last: str = ""


class JobReporter:
    """Prints the result of one job."""

    def __init__(self, spec: JobSpec, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_elastic = spec.is_elastic
        self._console = console
        self._clock = clock
        self._started = clock()
        self._decided: float | None = None  # when the outcome was decided
        self._ended_ranks: set[int] = set()  # of the workers that were ended because of the outcome
        self._losses: deque[Log] = deque(maxlen=_PAGE_LOSSES)
        self._counter = LossCounter(clock)

    def start(self) -> None:
        """The job starts now."""
        self._started = self._clock()

    async def run(self) -> None:
        """Sum up counted losses, until cancelled."""
        while True:
            await asyncio.sleep(_SUM_UP_SECONDS)
            self.sum_up()

    def sum_up(self, *, is_last: bool = False) -> None:
        """Print the sums of losses that are due, or all (`is_last`)."""
        for sentence in self._counter.sum_up(is_last=is_last):
            self._console.notice(f"{sentence}.")

    def log(self, log: Log, outcome: Outcome | None) -> None:
        """Print what the core logs; not the loss of a host that the page about this outcome explains."""
        sentence = log.sentence.rstrip(".")
        is_loss = log.level is Level.WARNING
        if is_loss:
            self._losses.append(log)
        if log.host is None:
            self._console.notice(f"{sentence}.")
        elif not self._counter.note(log.host, sentence) if is_loss else log.host in self._counter.counted:
            self._console.verbose(f"{sentence}.")
        elif not is_loss or outcome is None or not _explains(outcome, log):
            self._console.notice(f"{sentence}.")

    def note_interrupt(self, workers: int) -> None:
        """Ctrl-C was pressed, and so many workers are stopped."""
        self._console.hide_interrupts()
        if workers:
            who, them = ("1 worker", "it") if workers == 1 else (f"{workers} workers", "them")
            self._console.notice(f"stopping {who}; Ctrl-C again stops {them} immediately.")

    def decide(self) -> None:
        """The outcome is decided."""
        if self._decided is None:
            self._decided = self._clock()
            self.sum_up(is_last=True)

    def note_end_ordered(self, worker: Worker, state: State) -> None:
        """This worker is ended because of the outcome; the page names it if it is a member of the newest generation."""
        if state.is_member(state.workers[worker.slot]):
            self._ended_ranks.add(state.rank_of(worker))

    def explain(self, outcome: Outcome, hosts: int, state: State) -> None:
        """Print why the job failed; `hosts` have workers."""
        if outcome.cause is Cause.WORKER_FAILED and outcome.worker is not None and outcome.rank is not None:
            self._show_page(outcome, outcome.worker, outcome.rank, state)
            return
        if outcome.cause is Cause.SUCCEEDED or outcome.is_interrupt:
            return
        place = ""
        if outcome.cause is Cause.COMMAND_NOT_STARTED and outcome.worker is not None and hosts > 1:
            place = f"on the host {outcome.worker.slot.host!r}, "
        is_hopeless = outcome.exit_code == TEMPORARY_FAILURE and outcome.cause is not Cause.STOPPED
        if self._is_elastic and (is_hopeless or outcome.cause in _HOPELESS):
            self._show_hopeless(outcome)
        else:
            self._console.notice(f"{place}{outcome.reason.rstrip('.')}.")

    def _show_hopeless(self, outcome: Outcome) -> None:
        """The page of a job that could not continue with the workers that were left."""
        losses = [loss.sentence.rstrip(".") for loss in self._losses if not _explains(outcome, loss)]
        notes = [f"Lost before: {sentence}." for sentence in losses]
        if outcome.exit_code == TEMPORARY_FAILURE:
            notes.append(f"Exit code {TEMPORARY_FAILURE}: the job may continue when you start it again.")
        self._console.page(
            Page(
                reason=outcome.reason,
                last_lines=() if outcome.worker is None else self._console.output.tail(outcome.worker),
                ended_ranks=tuple(sorted(self._ended_ranks)),
                notes=tuple(notes),
            )
        )

    def _show_page(self, outcome: Outcome, worker: Worker, rank: int, state: State) -> None:
        """The page of a worker that failed."""
        done = [each for each in state.workers.values() if each.is_done and state.is_member(each)]
        who = describe_ranks(each.assignment.rank for each in done).capitalize()
        note = f"{who} ended with 0, but the job could not continue without rank {rank}, and ends with its failure."
        self._console.page(
            Page(
                rank=rank,
                host=worker.slot.host,
                slot=worker.slot.index,
                returncode=outcome.returncode,
                seconds=(self._decided or self._clock()) - self._started,
                last_lines=self._console.output.tail(worker),
                ended_ranks=tuple(sorted(self._ended_ranks)),
                notes=(note,) if done and self._is_elastic else (),
            )
        )


def _explains(outcome: Outcome, loss: Log) -> bool:
    """The reason of the outcome is this loss."""
    return (loss.worker is not None and loss.worker == outcome.worker) or (
        loss.host is not None and loss.host == outcome.host
    )
