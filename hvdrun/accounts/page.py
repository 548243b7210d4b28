"""What a person reads about the time of a job: the line at its end, and the table of -v."""

from collections.abc import Iterator, Sequence

from hvdrun.accounts.history import History, WorkerHistory
from hvdrun.accounts.report import (
    PARTS,
    UNKNOWN,
    Straggler,
    add_up,
    compute_goodput,
    find_stragglers,
    list_measured,
    split,
)
from hvdrun.console.page import describe_seconds
from hvdrun.spec.jobspec import JobSpec
from rendezvous.wire.accounts import Account

LEAST_SECONDS = 60.0  # a shorter job prints no goodput
MOST_ROWS = 20
_MOST_NAMED = 3  # ranks
_WIDTH = 9
_LEAST_SHOWN = 0.05  # seconds, of all workers
_SHORT = {"communication": "comm.", "checkpoint": "ckpt"}
_TOTAL = "total"
_UNSEEN = (
    "no worker called hvd.init(), so {} had no effect: DDP, FSDP and the like do not go through hvd; "
    "hvdrun stacks and torch.profiler work with them"
)


def describe_goodput(history: History, seconds: float) -> str | None:
    """The line at the end of a job that has run for so many seconds; None if there is nothing to say.

    `goodput 97.8 %; rank 5 (server2) was last in 412 of 500 steps: the others waited 31 s for it`
    """
    measured = list_measured(history)
    goodput = compute_goodput([account for _, account in measured])
    if goodput is None or seconds < LEAST_SECONDS:
        return None
    stragglers = find_stragglers(measured, history.find_host)
    parts = [f"goodput {goodput * 100:.1f} %", *map(_describe_straggler, stragglers[:_MOST_NAMED])]
    return "; ".join(parts)


def describe_unseen(spec: JobSpec) -> str | None:
    """The line at the end of a job of plain programs about the options that watch what goes through hvd.

    Not about those that the environment may give to all jobs of a machine.
    """
    workers = spec.workers
    given = {
        "--check-nan": workers.check_nan,
        "--nan-is-error": workers.nan_is_error,
        "--timeline": workers.timeline,
        "--hang-timeout": spec.limits.hang_timeout_seconds,
    }
    names = [name for name, value in given.items() if value]
    if not names:
        return None
    return _UNSEEN.format(" and ".join(filter(None, (", ".join(names[:-1]), names[-1]))))


def _describe_straggler(each: Straggler) -> str:
    waited = f"{each.seconds:.0f} s" if each.seconds < LEAST_SECONDS else describe_seconds(each.seconds)
    how = f"was last in {each.last} of {each.of} steps" if each.last else "came late to the communication"
    return f"rank {each.rank} ({each.host}) {how}: the others waited {waited} for it"


def render_table(history: History) -> Iterator[str]:
    """The lines of the table: a row for each worker, by rank, with seconds by part, and one for all.

    A part that would be 0.0 everywhere has no column, but for what is unknown.
    """
    rows = sorted(
        (each for each in history.workers.values() if each.account is not None),
        key=lambda each: (each.rank, each.worker.incarnation),
    )
    if not rows:
        return
    measured = [account for _, account in list_measured(history)]
    sums = add_up(measured)
    columns = [part for part in PARTS if sums[part] >= _LEAST_SHOWN]
    if measured:
        columns.append(UNKNOWN)
    width = max(len("host"), *(len(str(each.worker)) for each in rows))
    titles = "".join(f"{_SHORT.get(each, each):>{_WIDTH}}" for each in (_TOTAL, *columns))
    yield f"rank  {'host':{width}}{titles}  waited most for".rstrip()
    shown = rows
    if len(rows) > MOST_ROWS:
        shown = rows[: MOST_ROWS - 1]
    for each in shown:
        yield _render_row(each, columns, width)
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown)} workers more: --outcome FILE writes all"
    total = sum(each.account.total_seconds for each in rows if each.account is not None)
    numbers = [total, *(sums[part] for part in columns)]
    yield f"{'all':4}  {'':{width}}" + "".join(f"{number:{_WIDTH}.1f}" for number in numbers)


def _render_row(each: WorkerHistory, columns: Sequence[str], width: int) -> str:
    account = each.account or Account(each.worker)
    parts = split(account)
    numbers = [f"{parts[part]:.1f}" if account.is_measured else "-" for part in columns]
    cells = "".join(f"{text:>{_WIDTH}}" for text in (f"{account.total_seconds:.1f}", *numbers))
    return f"{each.rank:4}  {each.worker!s:{width}}{cells}{_name_slowest(account)}"


def _name_slowest(account: Account) -> str:
    slowest = max(account.waited_for, key=lambda waited: waited.seconds, default=None)
    if slowest is None:
        return ""
    return f"  rank {slowest.rank}: {slowest.seconds:.1f}"
