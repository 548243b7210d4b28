"""What a job's time was spent on: sums, goodput, recoveries, and the ranks that the others waited for; pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hvdrun.accounts.history import History, Loss
from rendezvous.wire.accounts import Account, RecoveryTime

# The parts of an account, in the order in which they are shown.
PARTS = (
    "start",
    "compute",
    "waiting",
    "communication",
    "commit",
    "checkpoint",
    "recovery",
    "repeated",
    "idle",
)
UNKNOWN = "unknown"
_GOOD = ("compute", "waiting", "communication")
_TIMES_AS_OFTEN = 2.5  # as a quick rank is the last
_LEAST_LAST = 0.3  # of the steps
_LEAST_COST = 0.05  # of the job's time


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """The parts of one recovery, in seconds; None where a part is not known.

    generation: with which the job has continued; 0 where all workers were started again.
    detect: until the others were interrupted. reform: until they were connected, or all ran again.
    state: to restore the state, and to send it. replay: for steps that were repeated. Of the slowest worker each.
    """

    generation: int
    detect: float
    reform: float
    state: float | None
    replay: float | None


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others waited for.

    last: in how many steps it was the last one. of: how many steps there were.
    seconds: how long each of the others waited for it, on average. share: of the job's time.
    """

    rank: int
    host: str
    last: int
    of: int
    seconds: float
    share: float


def split(account: Account) -> dict[str, float]:
    """The parts of one account by name, and what is unknown: they sum to its total."""
    parts = {part: float(getattr(account, f"{part}_seconds")) for part in PARTS}
    parts[UNKNOWN] = max(0.0, account.total_seconds - sum(parts.values()))
    return parts


def list_measured(history: History) -> list[Account]:
    """The accounts whose parts are known."""
    accounts = (each.account for each in history.workers.values())
    return [account for account in accounts if account is not None and account.is_measured]


def add_up(accounts: Iterable[Account]) -> dict[str, float]:
    """The sums of the parts over all workers."""
    sums = dict.fromkeys((*PARTS, UNKNOWN), 0.0)
    for account in accounts:
        for part, seconds in split(account).items():
            sums[part] += seconds
    return sums


def compute_goodput(accounts: Sequence[Account]) -> float | None:
    """The share of all workers' time in steps that count; None where no worker has measured it.

    That is compute, waiting and communication of the steps that were not repeated, over the total.
    """
    total = sum(account.total_seconds for account in accounts)
    if not total:
        return None
    sums = add_up(accounts)
    return min(1.0, sum(sums[part] for part in _GOOD) / total)


def find_recovery(loss: Loss, accounts: Iterable[Account]) -> RecoveryParts | None:
    """The parts of the recovery from a loss; None where the job has not continued."""
    if loss.continued_at is None:
        return None
    times = [each for account in accounts for each in account.recoveries if each.generation == loss.generation]

    def find_longest(read: Callable[[RecoveryTime], float]) -> float | None:
        return max(map(read, times), default=None)

    reform = find_longest(lambda each: each.reform_seconds)
    return RecoveryParts(
        loss.generation,
        loss.detect_seconds,
        loss.continued_at - loss.at if reform is None else reform,
        find_longest(lambda each: each.state_seconds),
        find_longest(lambda each: each.replay_seconds),
    )


def find_stragglers(accounts: Sequence[Account], find_host: Callable[[int], str]) -> list[Straggler]:
    """The ranks that were the last in more than their share of the steps, and have cost the others much; dearest first.

    Also healthy ranks wait for each other, and a busy machine holds up now this one and now that one. So a rank is
    named only where it was the last often, and much more often than a quick one. What counts is how much longer it was
    waited for.
    """
    longest = max((account.total_seconds for account in accounts), default=0.0)
    steps = max((account.steps for account in accounts), default=0)
    if not longest or not steps:
        return []
    # How many there were at a time: a lost worker counts for as long as it ran.
    size = sum(account.total_seconds for account in accounts) / longest
    seconds: defaultdict[int, float] = defaultdict(float)
    last: defaultdict[int, int] = defaultdict(int)
    for waited in (each for account in accounts for each in account.waited_for):
        seconds[waited.rank] += waited.seconds / max(1.0, size - 1)
        last[waited.rank] = max(last[waited.rank], waited.steps)
    quick_seconds, quick_last = (_find_quick(each, round(size)) for each in (seconds, last))
    fair = max(sum(last.values()) / max(size, 1.0), _TIMES_AS_OFTEN * quick_last, _LEAST_LAST * steps)
    found = [
        Straggler(rank, find_host(rank), min(last[rank], steps), steps, waited, waited / longest)
        for rank, waited in seconds.items()
        if last[rank] > fair and waited - quick_seconds > _LEAST_COST * longest
    ]
    return sorted(found, key=lambda each: -each.seconds)


def _find_quick(by_rank: Mapping[int, float], size: int) -> float:
    """What holds of a quick rank: a third of all are quicker at most; a rank that nobody has waited for has 0."""
    silent = max(0, size - len(by_rank))
    in_order = sorted([*by_rank.values(), *[0.0] * silent])
    return in_order[(len(in_order) - 1) // 3]
