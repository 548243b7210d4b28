"""What a job's time was spent on: sums, goodput, recoveries, and the ranks that the others waited for; pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

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
_TIMES_AS_OFTEN = 2.5  # a straggler is the last so many times as often as a quick rank
_LEAST_LAST = 0.3  # the share of the steps in which a straggler is the last
_LEAST_COST = 0.05  # the share of the job's time for which the others wait for a straggler
_HALF, _NEARLY_ALL = 0.5, 0.9  # of the steps, in which a rank has taken part
_LATE_SHARE = 0.75  # a rank that comes late to communication has at most this share of the others' time in it


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """The parts of one recovery, in seconds; None where a part is not known.

    generation: with which the job has continued; 0 where all workers were started again.
    detect: until the others were interrupted. reform: from then until they were connected, or all ran again.
    state: to restore and send the state. replay: for repeated steps. Each of these is that of the slowest worker.
    """

    generation: int
    detect: float
    reform: float
    state: float | None
    replay: float | None


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others waited for.

    last: in how many steps it was the last one to ask; 0 where it asked in time, and came late to the communication.
    of: how many steps there were.
    seconds: the mean time that one of the others waited for it.
    """

    rank: int
    host: str
    last: int
    of: int
    seconds: float


def split(account: Account) -> dict[str, float]:
    """The parts of one account by name, and what is unknown: they sum to its total."""
    parts = {part: float(getattr(account, f"{part}_seconds")) for part in PARTS}
    parts[UNKNOWN] = max(0.0, account.total_seconds - sum(parts.values()))
    return parts


def list_measured(history: History) -> list[tuple[int, Account]]:
    """The accounts whose parts are known, each with the rank of its worker."""
    known = ((each.rank, each.account) for each in history.workers.values())
    return [(rank, account) for rank, account in known if account is not None and account.is_measured]


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


def find_stragglers(ranked: Sequence[tuple[int, Account]], find_host: Callable[[int], str]) -> list[Straggler]:
    """The ranks that the others have waited for, and that have cost them much; dearest first.

    Such a rank is the last one to ask for what all communicate. Or it asks in time, in a thread of its own, and comes
    late to the communication: its program is slow between `backward()` and `step()`.

    Args:
        ranked: the accounts, each with the rank of its worker.
        find_host: where a rank ran.
    """
    accounts = [account for _, account in ranked]
    longest = max((account.total_seconds for account in accounts), default=0.0)
    steps = max((account.steps for account in accounts), default=0)
    if not longest or not steps:
        return []
    least_seconds = _LEAST_COST * longest
    last, late = _find_last(ranked, longest, steps, least_seconds), _find_late(ranked, least_seconds)
    found = []
    for rank in last.keys() | late.keys():
        times, seconds = last.get(rank, (0, 0.0))
        found.append(Straggler(rank, find_host(rank), min(times, steps), steps, seconds + late.get(rank, 0.0)))
    return sorted(found, key=lambda each: -each.seconds)


def _find_last(
    ranked: Sequence[tuple[int, Account]], longest: float, steps: int, least_seconds: float
) -> dict[int, tuple[int, float]]:
    """By rank, in how many steps it was the last to ask, and for how long the others waited for it.

    Healthy ranks wait for each other, too, and a busy machine holds up now this one and now that one. So a rank is
    named only if it was the last often, and much more often than a quick one. The cost is how much longer it was waited
    for than a quick one.
    """
    accounts = [account for _, account in ranked]
    # How many there were at a time: a lost worker counts for as long as it ran.
    size = sum(account.total_seconds for account in accounts) / longest
    seconds: defaultdict[int, float] = defaultdict(float)
    last: defaultdict[int, int] = defaultdict(int)
    for waited in (each for account in accounts for each in account.waited_for):
        seconds[waited.rank] += waited.seconds / max(1.0, size - 1)
        last[waited.rank] = max(last[waited.rank], waited.steps)
    present = _find_present(ranked, _HALF)  # the others had little time to be waited for
    quick_seconds, quick_last = (_find_quick([each[rank] for rank in present]) for each in (seconds, last))
    fair = max(sum(last.values()) / max(size, 1.0), _TIMES_AS_OFTEN * quick_last, _LEAST_LAST * steps)
    return {
        rank: (last[rank], waited)
        for rank, waited in seconds.items()
        if last[rank] > fair and waited - quick_seconds > least_seconds
    }


def _find_late(ranked: Iterable[tuple[int, Account]], least_seconds: float) -> dict[int, float]:
    """By rank, for how long the others waited for it within the communication.

    All ranks end the communication at the same time. So a rank that is blocked in it much shorter than the others began
    it later by as much. Only ranks that were there all the time are compared: fewer workers communicate faster.
    """
    steps = _add_up_steps(ranked)
    seconds: defaultdict[int, float] = defaultdict(float)
    for rank, account in ranked:
        seconds[rank] += account.communication_seconds
    means = {rank: seconds[rank] / steps[rank] for rank in _find_present(ranked, _NEARLY_ALL)}
    found = {}
    for rank, mean in means.items():
        others = [each for other, each in means.items() if other != rank]
        usual = median(others) if others else 0.0
        waited = (usual - mean) * steps[rank]
        if mean <= _LATE_SHARE * usual and waited > least_seconds:
            found[rank] = waited
    return found


def _add_up_steps(ranked: Iterable[tuple[int, Account]]) -> dict[int, int]:
    steps: defaultdict[int, int] = defaultdict(int)
    for rank, account in ranked:
        steps[rank] += account.steps
    return steps


def _find_present(ranked: Iterable[tuple[int, Account]], share: float) -> list[int]:
    """The ranks that have taken part in this share of the steps."""
    steps = _add_up_steps(ranked)
    return [rank for rank, taken in steps.items() if taken and taken >= share * max(steps.values())]


def _find_quick(values: Iterable[float]) -> float:
    """The value of a quick rank: at most a third of the ranks have a smaller one."""
    in_order = sorted(values)
    return in_order[(len(in_order) - 1) // 3]
