"""Prints what the core logs about a job, and in the end why the job failed."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from hvdrun.console.console import Console
from hvdrun.console.page import Page, describe_seconds
from rendezvous.core.messages import Effect, Explanation, Finish, Launch, Level, Log, Terminate, describe
from rendezvous.core.model import Slot, Worker

PRINTED_LOSSES = 5  # losses of one kind that are printed one by one in this time:
COUNT_SECONDS = 60.0  # after it, one sentence counts the further losses
REPEATED_SECONDS = 1.0  # an order that the core gives again within this time was on its way
_SUM_UP_SECONDS = 1.0  # between two looks whether there is something to sum up


class LossCounter:
    """Counts losses that differ only in the host: the first ones are printed, the others summed up after a while.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self._hosts: set[str] = set()  # whose last loss was not printed

    def counts(self, host: str, log: Log) -> bool:
        """Whether this is only counted: one loss of many, or what follows from it for the same host."""
        if log.level is not Level.WARNING:
            return host in self._hosts
        now, sentence = self._clock(), log.sentence
        kind = self._kinds.setdefault(re.sub(rf"(?<![\w.-]){re.escape(host)}\b", "", sentence), _Kind(now))
        if not kind.counted and now - kind.since >= COUNT_SECONDS:
            kind.printed, kind.since = 0, now
        kind.printed += 1
        if kind.printed <= PRINTED_LOSSES:
            self._hosts.discard(host)
            return False
        self._hosts.add(host)
        kind.counted += 1
        kind.last = sentence
        return True

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


@dataclass(slots=True)
class _Restart:
    """A restart of all workers.

    since: when they were stopped. workers: how many are started. awaited: those that do not run yet.
    """

    since: float
    workers: int = 0
    awaited: set[Worker] = field(default_factory=set)


class JobReporter:
    """Prints what the core logs about one job, and in the end why it failed.

    Args:
        console: where it prints.
        clock: monotonic, in seconds.
        ago_seconds: how long ago the job began, where a former server of it has begun it.
        has_comparable_hosts: see `JobSpec`.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        *,
        ago_seconds: float = 0.0,
        has_comparable_hosts: bool = False,
    ) -> None:
        self._console = console
        self._clock = clock
        self._started = clock() - ago_seconds
        self._has_comparable_hosts = has_comparable_hosts
        self._decided: float | None = None  # when the outcome was decided
        self._counter = LossCounter(clock)
        self._restart: _Restart | None = None
        self._orders: dict[tuple[type[Effect], Slot], tuple[Worker, str, float]] = {}  # the last ones that were printed

    async def run(self) -> None:
        """Sum up counted losses, until cancelled."""
        while True:
            await asyncio.sleep(_SUM_UP_SECONDS)
            self.sum_up()

    def sum_up(self, *, is_last: bool = False) -> None:
        """Print the sums of losses that are due, or all (`is_last`)."""
        for sentence in self._counter.sum_up(is_last=is_last):
            self._console.notice(f"{sentence}.", Level.WARNING)

    def tell(self, effect: Effect) -> None:
        """Print what the core logs or orders; an order that only crosses a report of its host is printed once."""
        if (log := describe(effect)) is not None and not self._is_repeated(effect):
            self.log(log)

    def _is_repeated(self, effect: Effect) -> bool:
        if not isinstance(effect, Launch | Terminate):
            return False
        # A repeated launch has another reason.
        key, reason = (type(effect), effect.worker.slot), ""
        if isinstance(effect, Terminate):
            reason = effect.reason
        now, last = self._clock(), self._orders.get(key)
        if last is not None and last[:2] == (effect.worker, reason) and now - last[2] < REPEATED_SECONDS:
            return True
        self._orders[key] = effect.worker, reason, now
        return False

    def log(self, log: Log) -> None:
        """Print what the core logs; of many losses that differ only in the host, and what follows, only the first."""
        if log.level is Level.DEBUG:
            self._console.verbose(log.sentence, log.host)
        elif log.host is not None and self._counter.counts(log.host, log):
            self._console.verbose(f"{log.sentence}.", log.host)
        else:
            self._console.notice(f"{log.sentence}.", log.level, log.host)

    def note_stop(self) -> None:
        """Note that all workers are stopped, to be started again."""
        if self._restart is None:
            self._restart = _Restart(self._clock())

    def note_launch(self, launch: Launch) -> None:
        """Note that a worker is started; in a restart it is awaited."""
        if self._restart is not None and launch.round is not None:
            self._restart.awaited.add(launch.worker)
            self._restart.workers = max(self._restart.workers, launch.assignment.size)

    def note_started(self, worker: Worker) -> None:
        """Note that a worker runs; with the last one of a restart, print how long the restart took."""
        restart = self._restart
        if restart is None or worker not in restart.awaited:
            return
        restart.awaited.discard(worker)
        if not restart.awaited:
            self._restart = None
            who = "the worker runs" if restart.workers == 1 else f"all {restart.workers} workers run"
            self._console.notice(f"{who} again after {describe_seconds(self._clock() - restart.since)}.")

    def note_interrupt(self, workers: int) -> None:
        """Print that Ctrl-C was pressed, and that so many workers are stopped."""
        self._console.hide_interrupts()
        if workers:
            who, them = ("1 worker", "it") if workers == 1 else (f"{workers} workers", "them")
            self._console.notice(f"stopping {who}; Ctrl-C again stops {them} immediately.")

    def decide(self) -> None:
        """Note that the outcome is decided."""
        if self._decided is None:
            self._decided = self._clock()
            self.sum_up(is_last=True)

    def explain(self, end: Finish) -> None:
        """Print why the job failed."""
        if end.explanation is Explanation.SENTENCE:
            level = Level.ERROR if end.outcome.exit_code else Level.INFO
            self._console.notice(f"{end.sentence}.", level, end.outcome.host)
        elif end.explanation is not Explanation.NONE:
            self._console.page(self._make_page(end))

    def _make_page(self, end: Finish) -> Page:
        outcome, worker = end.outcome, end.outcome.worker
        last_lines: tuple[str, ...] = ()
        if worker is not None:
            last_lines = self._console.output.tail(worker)

        page = Page(
            reason=end.sentence,
            culprit=end.culprit,
            evidence=outcome.evidence,
            last_lines=last_lines,
            ended_ranks=end.stopped,
            notes=end.notes,
            has_comparable_hosts=self._has_comparable_hosts,
        )

        if end.explanation is Explanation.RECOVERY_PAGE:
            return page
        seconds = (self._decided or self._clock()) - self._started
        return replace(page, rank=outcome.rank, worker=worker, returncode=outcome.returncode, seconds=seconds)
