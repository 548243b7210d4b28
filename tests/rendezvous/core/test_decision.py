"""The decision: one table of what follows from what, and laws about all that survivors may report."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous.core.decision import Answer, AwaitWorkers, End, Situation, can_restore, decide
from rendezvous.core.reports import (
    Action,
    CompletedOperation,
    JoinReason,
    PendingOperation,
    RecoveryDecision,
    Report,
)
from tests.rendezvous.core.commands import parse_report
from tests.rendezvous.core.laws import check_retry

few = settings(max_examples=40)

STUCK = "pending=allreduce.w@8!its tensor was changed in place"
RESTORED = RecoveryDecision(Action.RESTORE, reason="before")
RESIZED = RecoveryDecision(Action.RESIZE, removed_only=True)

# The reports of ranks 0, 1, ... of three ("" for one that is gone), what else there is, and what is decided.
TABLE = [
    # all have called init()
    (["begin", "begin", "begin"], {}, Action.BEGIN),
    (["begin", "", "begin"], {}, Action.BEGIN),
    (["begin", "", ""], {"min_size": 2}, End),
    (["begin", "", ""], {"min_size": 2, "newcomers": 1}, Action.BEGIN),
    (["begin", "", "continue"], {}, End),
    (["begin", "", "form"], {}, End),
    (["begin", "", "restore state"], {}, End),
    # no worker was connected
    (["form", "form", ""], {}, Action.BEGIN),
    (["form", "", ""], {"min_size": 2}, End),
    (["form state", "form", ""], {"former": RESTORED}, Action.RESTORE),
    (["form", "form", ""], {"former": RESTORED}, End),
    (["form state", "form state needs_state", ""], {"former": RESIZED}, Action.RESIZE),
    (["form state", "", ""], {"former": RESTORED, "min_size": 2}, AwaitWorkers),
    (["form", "form", ""], {"former": RecoveryDecision(Action.RETRY)}, Action.RETRY),
    # they can continue where they are
    (["continue", "continue", ""], {}, Action.RETRY),
    (["continue", "form", ""], {}, Action.RETRY),
    (["continue pending=allreduce.x", "continue pending=allreduce.x", ""], {}, Action.RETRY),
    (["continue pending=allreduce.x@5 seen=5", "continue done=allreduce.x@4 seen=4", ""], {}, Action.RETRY),
    (["continue pending=allreduce.x seen=4", "continue done=allreduce.x@4 seen=4", ""], {}, Action.RETRY),
    (["continue pending=broadcast.b^1", "continue pending=broadcast.b^1", ""], {}, Action.RETRY),
    (["continue pending=allreduce.x{0,1}", "continue", ""], {}, Action.RETRY),
    (["continue pending=commit.1#3!unfit", "continue pending=commit.1#3", ""], {}, Action.RETRY),
    (["continue pending=barrier.b!unfit", "continue done=barrier.b@3 seen=3", ""], {}, Action.RETRY),
    (["continue", "continue", "continue"], {"min_size": 3}, Action.RETRY),
    # an operation cannot be repeated
    ([f"continue state '{STUCK}'", "continue state", ""], {}, Action.RESTORE),
    ([f"continue state '{STUCK}'", "form", ""], {}, Action.RESTORE),
    ([f"continue state '{STUCK}'", "continue", ""], {}, Action.RESTORE),
    ([f"continue state '{STUCK}'", "continue pending=allreduce.x", ""], {}, End),
    ([f"continue '{STUCK}'", "continue", ""], {}, End),
    ([f"continue '{STUCK}'", "continue state", ""], {}, End),
    (["continue pending=allreduce.x@5 seen=5", "continue done=allreduce.x@5 seen=5", ""], {}, End),
    (["continue pending=allreduce.x seen=4", "continue done=allreduce.x@5 seen=5", ""], {}, End),
    (["continue pending=broadcast.b^2", "continue pending=broadcast.b^2", ""], {}, End),
    (["continue pending=allreduce.x{0,2}", "continue", ""], {}, End),
    (["continue pending=barrier.b{0,2}", "continue", ""], {}, End),
    (["continue pending=commit.1#2{0,2}", "continue", ""], {}, Action.RETRY),
    (["continue pending=commit.1#2{0,1,2}", "continue", ""], {}, Action.RETRY),
    (["continue pending=allreduce.x seen=2", "continue floor=4 seen=9", ""], {}, End),
    (["continue pending=allreduce.x seen=2", "continue floor=3 seen=9", ""], {}, Action.RETRY),
    # one rank has returned to the last commit
    (["restore state", "continue state", "continue state"], {}, Action.RESTORE),
    (["restore state", "continue pending=allreduce.x", ""], {}, End),
    (["restore state", "", ""], {"min_size": 2}, AwaitWorkers),
    (["restore state", "", ""], {"min_size": 2, "newcomers": 1}, Action.RESTORE),
    # a resize
    (["resize state", "resize state", "resize state"], {}, Action.RESIZE),
    (["resize state", "continue state pending=check.c", ""], {}, Action.RESIZE),
    (["resize state done=check.c@4 seen=4", "continue state pending=check.c seen=3", ""], {}, Action.RESIZE),
    (["resize state done=x.y@3 done=check.c@4 seen=4", "continue state pending=x.y seen=2", ""], {}, Action.RESTORE),
    (["resize state", "restore state", ""], {}, Action.RESTORE),
    (["resize state", "", ""], {"min_size": 2}, AwaitWorkers),
    # too few
    (["continue state", "", ""], {"min_size": 2}, AwaitWorkers),
    (["continue state", "", ""], {"min_size": 2, "newcomers": 1}, Action.RESTORE),
    (["continue pending=allreduce.x", "", ""], {"min_size": 2, "newcomers": 1}, End),
    (["continue", "", ""], {"min_size": 2, "newcomers": 1}, End),
    (["continue state needs_state", "", ""], {"min_size": 2, "newcomers": 1}, End),
    # they contradict each other
    (["continue done=commit.1#3@9 seen=9", "continue seen=8", ""], {}, End),
    (["continue done=commit.1#3@9 seen=9", "continue seen=20 floor=12", ""], {}, Action.RETRY),
]


def read_reports(lines: list[str]) -> dict[int, Report]:
    return {rank: parse_report(shlex.split(line), len(lines)) for rank, line in enumerate(lines) if line}


def name(answer: Answer) -> object:
    return answer.action if isinstance(answer, RecoveryDecision) else type(answer)


@pytest.mark.parametrize(("lines", "rest", "expected"), TABLE, ids=str)
def test_reports_lead_to_their_decision(lines: list[str], rest: Mapping[str, object], expected: object) -> None:
    situation = replace(Situation(len(lines), read_reports(lines)), **rest)  # type: ignore[arg-type] # by name
    assert name(decide(situation)) == expected


def test_a_resize_that_adds_no_worker_needs_no_copies() -> None:
    reports = read_reports(["resize state", "resize state"])
    alone = decide(Situation(2, reports))
    others = decide(Situation(2, reports, newcomers=1))
    late = decide(Situation(2, reports | {1: Report(JoinReason.CONTINUE, has_state=True)}))
    removals = [each.removed_only for each in (alone, others, late) if isinstance(each, RecoveryDecision)]
    assert removals == [True, False, False]


def test_a_repeated_decision_copies_the_state_to_workers_that_came_meanwhile() -> None:
    reports = {0: Report(JoinReason.FORM, has_state=True)}
    alone = decide(Situation(1, reports, former=RESIZED))
    others = decide(Situation(1, reports, newcomers=1, former=RESIZED))
    assert [each.removed_only for each in (alone, others) if isinstance(each, RecoveryDecision)] == [True, False]


def test_an_end_names_the_cause_the_obstacle_and_a_remedy() -> None:
    reports = read_reports(["", "continue 'pending=allreduce.w@8!its tensor was changed in place'"])
    answer = decide(Situation(2, reports, interruption="rank 0 (a:0) was killed by SIGKILL (signal 9)"))
    assert isinstance(answer, End)
    assert answer.reason.startswith(
        "rank 0 (a:0) was killed by SIGKILL (signal 9); allreduce 'w' cannot be repeated on rank 1: "
        "its tensor was changed in place. "
    )
    assert "hvd.elastic.run" in answer.reason
    assert "hvd.allreduce_" in answer.reason


def test_a_shortage_says_how_many_are_left_and_how_others_could_come() -> None:
    answer = decide(Situation(2, {0: Report(JoinReason.CONTINUE)}, min_size=2))
    assert isinstance(answer, End)
    assert answer.reason.startswith("only 1 of at least 2 workers (--min-np) is left. ")
    assert "hvd.elastic.run" in answer.reason
    assert "hvd.allreduce_" not in answer.reason


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("continue state pending=allreduce.x", True),
        ("continue", True),
        ("continue pending=allreduce.x", False),
        ("continue done=allreduce.x@3", False),
        ("form", True),
        ("restore", False),
        ("resize", False),
        ("begin", False),
    ],
)
def test_a_worker_with_a_state_or_without_operations_can_restore(line: str, may: bool) -> None:
    assert can_restore(parse_report(line.split(), 2)) is may


@dataclass(frozen=True)
class Entry:
    """One operation of a generation, in its order."""

    ranks: tuple[int, ...]
    name: str
    number: int = 0


@dataclass(frozen=True)
class Loss:
    """A generation that was interrupted: its size, and what its survivors report."""

    size: int
    reports: dict[int, Report]


@st.composite
def losses(draw: st.DrawFn, *, only_repeatable: bool = False, has_state: bool | None = None) -> Loss:
    """A loss, at any moment, of any members but one.

    An operation is released when all its members have asked for it, and each asks for the next one when it has done the
    last. So of what was released only the last one of each rank may not be done there.

    only_repeatable: there are only barriers and commit rounds of all ranks.
    has_state: whether all survivors have one; None for either.
    """
    size = draw(st.integers(2, 5))
    entries = draw(orders(size, only_repeatable=only_repeatable))
    released = draw(st.integers(0, len(entries)))
    gone = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    states = st.booleans() if has_state is None else st.just(has_state)
    reports = {
        rank: draw(accounts(entries, released, rank, states, only_repeatable=only_repeatable))
        for rank in range(size)
        if rank not in gone
    }
    return Loss(size, reports)


@st.composite
def orders(draw: st.DrawFn, size: int, *, only_repeatable: bool) -> list[Entry]:
    """The order of a generation. Users do not name barriers: each has a name of its own."""
    everybody = tuple(range(size))
    rounds: dict[tuple[int, ...], int] = {}
    entries: list[Entry] = []
    for _ in range(draw(st.integers(1, 8))):
        some = st.sets(st.integers(0, size - 1), min_size=2).map(lambda ranks: tuple(sorted(ranks)))
        ranks = everybody if only_repeatable else draw(st.just(everybody) | some)
        barrier = f"barrier.{len(entries)}"
        name = draw(st.sampled_from(["commit.1", barrier] if only_repeatable else ["commit.1", barrier, "x", "y"]))
        if name == "commit.1":
            rounds[ranks] = rounds.get(ranks, 0) + 1
        entries.append(Entry(ranks, name, rounds[ranks] if name == "commit.1" else 0))
    return entries


@st.composite
def accounts(
    draw: st.DrawFn,
    entries: list[Entry],
    released: int,
    rank: int,
    states: st.SearchStrategy[bool],
    *,
    only_repeatable: bool,
) -> Report:
    """What one rank reports."""
    own = [(index, entry) for index, entry in enumerate(entries) if rank in entry.ranks]
    before = [(index, entry) for index, entry in own if index < released]
    after = [(index, entry) for index, entry in own if index >= released]
    is_last_done = draw(st.booleans())
    done = before if is_last_done else before[:-1]
    next_ = (after[:1] if draw(st.booleans()) else []) if is_last_done else before[-1:]
    seen = done[-1][0] if done else -1
    pending = []
    for index, entry in next_:
        is_heard = index < released and draw(st.booleans())
        seen = index if is_heard else seen
        obstacle = "" if only_repeatable or entry.number else draw(st.sampled_from(["", "", "", "it was changed"]))
        root = None if only_repeatable or entry.name != "y" else entry.ranks[0]
        known = index if is_heard else None
        pending.append(PendingOperation(entry.ranks, entry.name, entry.name, entry.number, known, root, obstacle))
    floor = draw(st.sampled_from([0, 0, 0, *(index for index, _ in done)])) if not only_repeatable else 0
    completed = [CompletedOperation(e.ranks, e.name, index, e.number) for index, e in done if index >= floor]
    return Report(
        JoinReason.CONTINUE,
        has_state=draw(states),
        pending=tuple(pending),
        completed=tuple(completed),
        seen=seen,
        floor=floor,
    )


@few
@given(losses())
def test_every_pending_operation_is_decided_once_and_nothing_committed_is_revoked(loss: Loss) -> None:
    answer = decide(Situation(loss.size, loss.reports))
    if isinstance(answer, RecoveryDecision) and answer.action is Action.RETRY:
        check_retry(loss.size, loss.reports, answer)
        assert set(answer.survivors) == set(loss.reports)


@few
@given(losses(only_repeatable=True))
def test_repeatable_operations_never_lead_to_a_restore(loss: Loss) -> None:
    answer = decide(Situation(loss.size, loss.reports))
    assert name(answer) is Action.RETRY


@few
@given(losses())
def test_truthful_reports_do_not_contradict_each_other(loss: Loss) -> None:
    answer = decide(Situation(loss.size, loss.reports))
    assert not (isinstance(answer, End) and "fault of hvdrun" in answer.reason)


@few
@given(losses(has_state=True))
def test_with_a_state_no_loss_ends_the_job(loss: Loss) -> None:
    assert name(decide(Situation(loss.size, loss.reports))) in {Action.RETRY, Action.RESTORE}


@few
@given(losses(), st.integers(1, 6), st.integers(0, 3))
def test_no_decision_makes_a_generation_too_small(loss: Loss, least: int, newcomers: int) -> None:
    answer = decide(Situation(loss.size, loss.reports, least, newcomers))
    if isinstance(answer, RecoveryDecision):
        taken = 0 if answer.action is Action.RETRY else newcomers
        assert len(loss.reports) + taken >= least


@few
@given(losses(), st.data())
def test_the_order_of_the_reports_does_not_matter(loss: Loss, data: st.DataObject) -> None:
    order = data.draw(st.permutations(list(loss.reports)))
    shuffled = {rank: loss.reports[rank] for rank in order}
    assert decide(Situation(loss.size, loss.reports)) == decide(Situation(loss.size, shuffled))


def test_the_cause_of_an_interruption_is_named_once() -> None:
    restored = Report(reason=JoinReason.RESTORE, has_state=True, error="no luck")
    reports = {0: Report(reason=JoinReason.CONTINUE, has_state=True), 1: restored}
    reason = "rank 1 has restored its last commit: no luck"
    for interruption, reported in (("no luck", reason), ("host b was lost", f"host b was lost; {reason}")):
        decision = decide(Situation(2, reports, interruption=interruption))
        assert isinstance(decision, RecoveryDecision)
        assert decision.reason == reported
