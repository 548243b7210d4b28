"""When a question has been pending for so long that somebody should know, or that the generation should end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from worker_runtime.coordination.wire import STALL_VARIABLES

_DISABLED_BY, _WARNING, _SHUTDOWN = STALL_VARIABLES  # "1" turns the check off; the others are seconds
_WARNING_SECONDS = 60.0
_SLACK_SECONDS = 0.001  # too long is what took longer than allowed, not just as long


@dataclass(frozen=True, slots=True)
class StallLimits:
    """How long a question may be pending.

    warning_seconds: until people are warned, and between warnings; None for never, which also means no limit.
    shutdown_seconds: until the generation ends; None for never.
    """

    warning_seconds: float | None = _WARNING_SECONDS
    shutdown_seconds: float | None = None


def read_stall_limits(environment: Mapping[str, str], complain: Callable[[str], None]) -> StallLimits:
    """The limits that Horovod's variables ask for; what cannot be followed is told, and left aside."""
    if environment.get(_DISABLED_BY, "").strip() == "1":
        return StallLimits(None, None)
    warning = _read_seconds(environment, _WARNING, complain) or _WARNING_SECONDS
    shutdown = _read_seconds(environment, _SHUTDOWN, complain) or None
    if shutdown is not None and shutdown < warning:
        complain(f"{_SHUTDOWN}={shutdown:g} is ignored: it is shorter than {_WARNING}={warning:g}")
        shutdown = None
    return StallLimits(warning, shutdown)


class StallSettings:
    """What rank 0 of the last generation has asked for.

    limits: that hold now.
    """

    def __init__(self, limits: StallLimits = StallLimits()) -> None:
        self.limits = limits
        self._environment: dict[str, str] = {}

    def read(self, environment: Mapping[str, str]) -> list[str]:
        """Take other settings; what cannot be followed, for people, unless they were told before."""
        remarks: list[str] = []
        self.limits = read_stall_limits(environment, remarks.append)
        is_new, self._environment = environment != self._environment, dict(environment)
        return remarks if is_new else []


class StallClock:
    """Tells when to look at what is pending; it holds no timer, so that nothing wakes while nothing is pending."""

    def __init__(self, limits: StallLimits) -> None:
        self.limits = limits
        self._warned_at: float | None = None

    def find_due(self, oldest: float | None, join: float | None = None) -> float | None:
        """When to look next, by the monotonic clock; None for never.

        Args:
            oldest: since when the oldest question is pending.
            join: since when a join is pending and nothing happens; that is warned of, and allowed for ever.
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
        """Whether the oldest question has been pending for longer than is allowed."""
        ends = self._find_end(oldest)
        return ends is not None and now > ends

    def note_warning(self, now: float) -> None:
        """People have been warned now."""
        self._warned_at = now

    def _find_end(self, oldest: float | None) -> float | None:
        limit = self.limits.shutdown_seconds
        return None if limit is None or oldest is None else oldest + limit


def _read_seconds(environment: Mapping[str, str], name: str, complain: Callable[[str], None]) -> float:
    """A number of seconds that is not negative; 0 where there is none, or none that makes sense."""
    text = environment.get(name, "").strip()
    try:
        seconds = float(text or 0)
    except ValueError:
        seconds = -1.0
    if 0 <= seconds < float("inf"):
        return seconds
    complain(f"{name}={text} is ignored: a number of seconds was expected")
    return 0.0
