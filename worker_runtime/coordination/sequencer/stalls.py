"""The stall check: when ranks have waited for others for too long, and the error that ends the wait.

The first report comes after `warning_seconds`, and another one each time that the wait has become twice as long. The
words of the error are Horovod's, since users search logs for them. In addition, a missing rank that waits itself is
shown with the name that it waits for, so that two names that differ by a letter appear side by side.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from worker_runtime.coordination.ordering.ordering import PendingSummary
from worker_runtime.coordination.ordering.refusals import MOST_NAMED, name_operation, name_ranks
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Kind, Request
from worker_runtime.coordination.sequencer.waits import Wait
from worker_runtime.coordination.wire import STALL_VARIABLES

_DISABLED_BY, _WARNING, _SHUTDOWN, _HANG = STALL_VARIABLES  # "1" turns the check off; the others are seconds
_WARNING_SECONDS = 10.0
_SLACK_SECONDS = 0.001  # a request stalls after more than the limit, not at the limit


@dataclass(frozen=True, slots=True)
class StallLimits:
    """The limits of the stall check.

    warning_seconds: the time before the first report; None for no reports.
    shutdown_seconds: the time before the generation ends; None for no limit.
    hang_seconds: the time without anything happening before hvdrun ends the job; None for no limit.
    """

    warning_seconds: float | None = _WARNING_SECONDS
    shutdown_seconds: float | None = None
    hang_seconds: float | None = None

    @property
    def shortest(self) -> float | None:
        """The time before the first of them is over; None where there is none."""
        return min(filter(None, (self.warning_seconds, self.shutdown_seconds, self.hang_seconds)), default=None)


def read_stall_limits(environment: Mapping[str, str], complain: Callable[[str], None]) -> StallLimits:
    """The limits from the variables; `complain` gets a message for each value that is ignored."""
    hang = _read_seconds(environment, _HANG, complain) or None
    if environment.get(_DISABLED_BY, "").strip() == "1":
        return StallLimits(None, None, hang)
    warning = _read_seconds(environment, _WARNING, complain)
    if warning is None:
        warning = _WARNING_SECONDS
    shutdown = _read_seconds(environment, _SHUTDOWN, complain) or None
    if shutdown is not None and shutdown < warning:
        complain(f"{_SHUTDOWN}={shutdown:g} is ignored: it is shorter than {_WARNING}={warning:g}")
        shutdown = None
    return StallLimits(warning or None, shutdown, hang)


class StallSettings:
    """The settings of rank 0 of the last generation.

    Args:
        limits: the limits until rank 0 sends its own.
    """

    def __init__(self, limits: StallLimits = StallLimits()) -> None:
        self.limits = limits
        self._environment: dict[str, str] = {}

    def read(self, environment: Mapping[str, str]) -> list[str]:
        """Read new settings; return messages about ignored values, unless the settings are unchanged."""
        remarks: list[str] = []
        self.limits = read_stall_limits(environment, remarks.append)
        is_new, self._environment = environment != self._environment, dict(environment)
        return remarks if is_new else []


class StallClock:
    """Computes the time of the next check. It has no timer, so that the process sleeps while nothing is pending.

    In each method `waits` are the pending operations.

    Args:
        limits: when a wait is reported, and when it is a hang.

    released_at: the time of the last release of any process set.
    """

    def __init__(self, limits: StallLimits) -> None:
        self.limits = limits
        self.released_at = 0.0
        self._warned_since: float | None = None  # the beginning of the wait that was reported
        self._next_seconds = 0.0  # how long it is at the next report
        self._hung_since: float | None = None  # the beginning of the hang that was reported
        self._hang_told_at = 0.0  # the last time

    def find_due(self, waits: Sequence[Wait]) -> float | None:
        """The time of the next check on the monotonic clock; None for never."""
        dues = [self._find_warning(waits), self._find_end(waits), self._find_hang(waits)]
        return min((due + _SLACK_SECONDS for due in dues if due is not None), default=None)

    def is_over(self, waits: Sequence[Wait], now: float) -> bool:
        """Whether the oldest request has exceeded the shutdown limit."""
        return _is_past(self._find_end(waits), now)

    def explain_end(self, waits: Sequence[Wait], now: float) -> str | None:
        """The error that ends the generation at the shutdown limit; None before."""
        if not self.is_over(waits, now):
            return None
        measured = [(each.pending, 0.0 if is_join(each) else now - each.since) for each in waits]
        return describe_stall_limit(measured, self.limits.shutdown_seconds or 0.0)

    def take_warning(self, waits: Sequence[Wait], now: float) -> bool:
        """Whether a report is due now; the next one is due when the wait is twice as long."""
        if not _is_past(self._find_warning(waits), now):
            return False
        since = _find_beginning(waits)
        self._next_seconds = 2 * self._find_seconds(since)
        while since + self._next_seconds <= now:
            self._next_seconds *= 2
        self._warned_since = since
        return True

    def choose_long(self, waits: Sequence[Wait], now: float) -> list[Wait]:
        """The waits that are long enough to be reported."""
        return [each for each in waits if now - each.still_since > (self.limits.warning_seconds or 0.0)]

    def take_hang(self, waits: Sequence[Wait], now: float) -> bool:
        """Whether the hang timeout is over; True again after another timeout, since hvdrun may have been replaced."""
        if not _is_past(self._find_hang(waits), now):
            return False
        self._hung_since = self._find_standstill(waits)
        self._hang_told_at = now
        return True

    def _find_warning(self, waits: Sequence[Wait]) -> float | None:
        if self.limits.warning_seconds is None or not waits:
            return None
        since = _find_beginning(waits)
        return since + self._find_seconds(since)

    def _find_seconds(self, since: float) -> float:
        if since == self._warned_since:
            return self._next_seconds
        return self.limits.warning_seconds or 0.0

    def _find_end(self, waits: Sequence[Wait]) -> float | None:
        """A join has no limit."""
        limit = self.limits.shutdown_seconds
        oldest = min((each.since for each in waits if not is_join(each)), default=None)
        return None if limit is None or oldest is None else oldest + limit

    def _find_hang(self, waits: Sequence[Wait]) -> float | None:
        if self.limits.hang_seconds is None or not waits:
            return None
        since = self._find_standstill(waits)
        if since == self._hung_since:
            since = self._hang_told_at
        return since + self.limits.hang_seconds

    def _find_standstill(self, waits: Sequence[Wait]) -> float:
        """Since when some rank waits, and nothing at all is released."""
        return max(self.released_at, min(each.since for each in waits))


def is_join(wait: Wait) -> bool:
    """Whether ranks that have joined wait for the others, which may train for long."""
    return wait.pending.request.signature.kind is Kind.JOIN


def _is_past(due: float | None, now: float) -> bool:
    return due is not None and now > due


def _find_beginning(waits: Sequence[Wait]) -> float:
    """Since when some rank waits, and nothing of the set is released."""
    return min(each.still_since for each in waits)


def _read_seconds(environment: Mapping[str, str], name: str, complain: Callable[[str], None]) -> float | None:
    """The value of a variable as seconds; None if it is missing or invalid."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds < float("inf"):
        return seconds
    complain(f"{name}={text} is ignored: a number of seconds was expected")
    return None


def describe_stall_limit(waiting: Sequence[tuple[PendingSummary, float]], limit_seconds: float) -> str | None:
    """The error that ends the generation at the shutdown limit; None if no operation has exceeded it.

    Args:
        waiting: all pending operations, oldest first, each with its waiting time in seconds.
        limit_seconds: the limit.
    """
    stalled = [pending for pending, waited in waiting if waited > limit_seconds]
    if not stalled:
        return None
    oldest = stalled[0]
    others = f" and {len(stalled) - 1} more" if len(stalled) > 1 else ""
    return (
        f"{name_operation(oldest.request)}{others} waited for {name_ranks(oldest.missing)} for more than "
        f"{limit_seconds:g} seconds, the stall limit. Horovod has been shut down. The ranks that were waited for are "
        f'marked by "!".\n{_list_missing(waiting, stalled)}'
    )


def _list_missing(waiting: Sequence[tuple[PendingSummary, float]], stalled: Sequence[PendingSummary]) -> str:
    """A line for each missing rank: the names that miss it, and the names that it waits for itself."""
    missed = _group(stalled, lambda pending: pending.missing)
    awaited = _group((pending for pending, _ in waiting), lambda pending: pending.asked)
    lines = ["Missing ranks:"]
    for rank in sorted(missed):
        itself = f", and waits itself for {_show(awaited[rank])}" if rank in awaited else ""
        lines.append(f"{rank}!: {_show(missed[rank])}{itself}")
    return "\n".join(lines)


def _group(
    pendings: Iterable[PendingSummary], find_ranks: Callable[[PendingSummary], Iterable[int]]
) -> dict[int, list[Request]]:
    """Each rank's requests, in the order of their arrival."""
    groups: dict[int, list[Request]] = {}
    for pending in pendings:
        for rank in find_ranks(pending):
            groups.setdefault(rank, []).append(pending.request)
    return groups


def _show(requests: Sequence[Request]) -> str:
    """Full names, as logs show them; at most MOST_NAMED."""
    names = (
        request.name if request.process_set == GLOBAL_SET else f"{request.name} in process set {request.process_set}"
        for request in requests[:MOST_NAMED]
    )
    return f"[{', '.join(names)}{' ...' * (len(requests) > MOST_NAMED)}]"
