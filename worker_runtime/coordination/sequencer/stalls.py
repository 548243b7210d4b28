"""The stall check: warnings about requests that are pending for too long, with the missing ranks.

The words and the form are Horovod's, since users search logs for them. In addition, a missing rank that waits itself is
shown with the name that it waits for, so that two names that differ by a letter appear side by side.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from worker_runtime.coordination.ordering.ordering import PendingSummary
from worker_runtime.coordination.ordering.refusals import MOST_NAMED, name_operation, name_ranks
from worker_runtime.coordination.ordering.requests import GLOBAL_SET, Request
from worker_runtime.coordination.wire import STALL_VARIABLES

_DISABLED_BY, _WARNING, _SHUTDOWN = STALL_VARIABLES  # "1" turns the check off; the others are seconds
_WARNING_SECONDS = 60.0
_SLACK_SECONDS = 0.001  # a request stalls after more than the limit, not at the limit


@dataclass(frozen=True, slots=True)
class StallLimits:
    """The limits of the stall check.

    warning_seconds: the time before the first warning, and between warnings; None for no warnings and no limit.
    shutdown_seconds: the time before the generation ends; None for no limit.
    """

    warning_seconds: float | None = _WARNING_SECONDS
    shutdown_seconds: float | None = None


def read_stall_limits(environment: Mapping[str, str], complain: Callable[[str], None]) -> StallLimits:
    """The limits from Horovod's variables; `complain` gets a message for each value that is ignored."""
    if environment.get(_DISABLED_BY, "").strip() == "1":
        return StallLimits(None, None)
    warning = _read_seconds(environment, _WARNING, complain) or _WARNING_SECONDS
    shutdown = _read_seconds(environment, _SHUTDOWN, complain) or None
    if shutdown is not None and shutdown < warning:
        complain(f"{_SHUTDOWN}={shutdown:g} is ignored: it is shorter than {_WARNING}={warning:g}")
        shutdown = None
    return StallLimits(warning, shutdown)


class StallSettings:
    """The settings of rank 0 of the last generation.

    limits: the present limits.
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
    """Computes the time of the next check. It has no timer, so that the process sleeps while nothing is pending."""

    def __init__(self, limits: StallLimits) -> None:
        self.limits = limits
        self._warned_at: float | None = None

    def find_due(self, oldest: float | None, join: float | None = None) -> float | None:
        """The time of the next check on the monotonic clock; None for never.

        Args:
            oldest: the time since when the oldest request is pending.
            join: the time since when a join is pending without releases; it is warned of, and has no limit.
        """
        since = [when for when in (oldest, join) if when is not None]
        warning = self.limits.warning_seconds
        if not since or warning is None:
            return None
        due = min(since) + warning
        if self._warned_at is not None:
            due = max(due, self._warned_at + warning)
        ends = self._find_end(oldest)
        return (due if ends is None else min(due, ends)) + _SLACK_SECONDS

    def is_over(self, oldest: float | None, now: float) -> bool:
        """Whether the oldest request has exceeded the shutdown limit."""
        ends = self._find_end(oldest)
        return ends is not None and now > ends

    def note_warning(self, now: float) -> None:
        """Note the time of a warning."""
        self._warned_at = now

    def _find_end(self, oldest: float | None) -> float | None:
        limit = self.limits.shutdown_seconds
        return None if limit is None or oldest is None else oldest + limit


def _read_seconds(environment: Mapping[str, str], name: str, complain: Callable[[str], None]) -> float:
    """The value of a variable as seconds; 0 if it is missing or invalid."""
    text = environment.get(name, "").strip()
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds < float("inf"):
        return seconds
    complain(f"{name}={text} is ignored: a number of seconds was expected")
    return 0.0


def describe_stall(waiting: Sequence[tuple[PendingSummary, float]], after_seconds: float) -> str | None:
    """The warning about stalled requests; None if there are none.

    Args:
        waiting: all pending operations, oldest first, each with its waiting time in seconds.
        after_seconds: an operation that has waited longer is stalled.
    """
    stalled = [pending for pending, waited in waiting if waited > after_seconds]
    if not stalled:
        return None
    return (
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting "
        f"for remainder of ranks for more than {after_seconds:g} seconds. The ranks that are missing may be slow, or "
        f"stopped, or may have taken another way through the program.\n{_list_missing(waiting, stalled, '')}"
    )


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
        f'marked by "!".\n{_list_missing(waiting, stalled, "!")}'
    )


def _list_missing(waiting: Sequence[tuple[PendingSummary, float]], stalled: Sequence[PendingSummary], mark: str) -> str:
    """A line for each missing rank: the names that miss it, and the names that it waits for itself."""
    missed = _group(stalled, lambda pending: pending.missing)
    awaited = _group((pending for pending, _ in waiting), lambda pending: pending.asked)
    lines = ["Missing ranks:"]
    for rank in sorted(missed):
        itself = f", and waits itself for {_show(awaited[rank])}" if rank in awaited else ""
        lines.append(f"{rank}{mark}: {_show(missed[rank])}{itself}")
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
