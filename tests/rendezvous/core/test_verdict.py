"""The verdict: one table of what follows from what, and laws about all that survivors may report."""

import shlex
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous.core.reports import Decision, JoinReason, Report, Verdict
from rendezvous.core.verdict import Answer, AwaitWorkers, End, Situation, can_restore, decide
from tests.rendezvous.core.commands import parse_report
from tests.rendezvous.core.laws import check_retry
from tests.rendezvous.core.strategies import Loss, losses

few = settings(max_examples=40)

STUCK = "pending=allreduce.w@8!its tensor was changed in place"
RESTORED = Verdict(Decision.RESTORE, reason="before")
RESIZED = Verdict(Decision.RESIZE, removed_only=True)

# The reports of ranks 0, 1, ... of three ("" for one that is gone), what else there is, and what is decided.
TABLE = [
    # all have called init()
    (["begin", "begin", "begin"], {}, Decision.BEGIN),
    (["begin", "", "begin"], {}, Decision.BEGIN),
    (["begin", "", ""], {"min_size": 2}, End),
    (["begin", "", ""], {"min_size": 2, "newcomers": 1}, Decision.BEGIN),
    (["begin", "", "continue"], {}, End),
    (["begin", "", "form"], {}, End),
    (["begin", "", "restore state"], {}, End),
    # no worker was connected
    (["form", "form", ""], {}, Decision.BEGIN),
    (["form", "", ""], {"min_size": 2}, End),
    (["form state", "form", ""], {"former": RESTORED}, Decision.RESTORE),
    (["form", "form", ""], {"former": RESTORED}, End),
    (["form state", "form state needs_state", ""], {"former": RESIZED}, Decision.RESIZE),
    (["form state", "", ""], {"former": RESTORED, "min_size": 2}, AwaitWorkers),
    (["form", "form", ""], {"former": Verdict(Decision.RETRY)}, Decision.RETRY),
    # they can continue where they are
    (["continue", "continue", ""], {}, Decision.RETRY),
    (["continue", "form", ""], {}, Decision.RETRY),
    (["continue pending=allreduce.x", "continue pending=allreduce.x", ""], {}, Decision.RETRY),
    (["continue pending=allreduce.x@5 seen=5", "continue done=allreduce.x@4 seen=4", ""], {}, Decision.RETRY),
    (["continue pending=allreduce.x seen=4", "continue done=allreduce.x@4 seen=4", ""], {}, Decision.RETRY),
    (["continue pending=broadcast.b^1", "continue pending=broadcast.b^1", ""], {}, Decision.RETRY),
    (["continue pending=allreduce.x{0,1}", "continue", ""], {}, Decision.RETRY),
    (["continue pending=commit.1#3!unfit", "continue pending=commit.1#3", ""], {}, Decision.RETRY),
    (["continue pending=barrier.b!unfit", "continue done=barrier.b@3 seen=3", ""], {}, Decision.RETRY),
    (["continue", "continue", "continue"], {"min_size": 3}, Decision.RETRY),
    # an operation cannot be repeated
    ([f"continue state '{STUCK}'", "continue state", ""], {}, Decision.RESTORE),
    ([f"continue state '{STUCK}'", "form", ""], {}, Decision.RESTORE),
    ([f"continue state '{STUCK}'", "continue", ""], {}, Decision.RESTORE),
    ([f"continue state '{STUCK}'", "continue pending=allreduce.x", ""], {}, End),
    ([f"continue '{STUCK}'", "continue", ""], {}, End),
    ([f"continue '{STUCK}'", "continue state", ""], {}, End),
    (["continue pending=allreduce.x@5 seen=5", "continue done=allreduce.x@5 seen=5", ""], {}, End),
    (["continue pending=allreduce.x seen=4", "continue done=allreduce.x@5 seen=5", ""], {}, End),
    (["continue pending=broadcast.b^2", "continue pending=broadcast.b^2", ""], {}, End),
    (["continue pending=allreduce.x{0,2}", "continue", ""], {}, End),
    (["continue pending=barrier.b{0,2}", "continue", ""], {}, End),
    (["continue pending=commit.1#2{0,2}", "continue", ""], {}, Decision.RETRY),
    (["continue pending=commit.1#2{0,1,2}", "continue", ""], {}, Decision.RETRY),
    (["continue pending=allreduce.x seen=2", "continue floor=4 seen=9", ""], {}, End),
    (["continue pending=allreduce.x seen=2", "continue floor=3 seen=9", ""], {}, Decision.RETRY),
    # one rank has returned to the last commit
    (["restore state", "continue state", "continue state"], {}, Decision.RESTORE),
    (["restore state", "continue pending=allreduce.x", ""], {}, End),
    (["restore state", "", ""], {"min_size": 2}, AwaitWorkers),
    (["restore state", "", ""], {"min_size": 2, "newcomers": 1}, Decision.RESTORE),
    # a resize
    (["resize state", "resize state", "resize state"], {}, Decision.RESIZE),
    (["resize state", "continue state pending=check.c", ""], {}, Decision.RESIZE),
    (["resize state done=check.c@4 seen=4", "continue state pending=check.c seen=3", ""], {}, Decision.RESIZE),
    (["resize state done=x.y@3 done=check.c@4 seen=4", "continue state pending=x.y seen=2", ""], {}, Decision.RESTORE),
    (["resize state", "restore state", ""], {}, Decision.RESTORE),
    (["resize state", "", ""], {"min_size": 2}, AwaitWorkers),
    # too few
    (["continue state", "", ""], {"min_size": 2}, AwaitWorkers),
    (["continue state", "", ""], {"min_size": 2, "newcomers": 1}, Decision.RESTORE),
    (["continue pending=allreduce.x", "", ""], {"min_size": 2, "newcomers": 1}, End),
    (["continue", "", ""], {"min_size": 2, "newcomers": 1}, End),
    (["continue state needs_state", "", ""], {"min_size": 2, "newcomers": 1}, End),
    # they contradict each other
    (["continue done=commit.1#3@9 seen=9", "continue seen=8", ""], {}, End),
    (["continue done=commit.1#3@9 seen=9", "continue seen=20 floor=12", ""], {}, Decision.RETRY),
]


def read_reports(lines: list[str]) -> dict[int, Report]:
    return {rank: parse_report(shlex.split(line), len(lines)) for rank, line in enumerate(lines) if line}


def name(answer: Answer) -> object:
    return answer.decision if isinstance(answer, Verdict) else type(answer)


@pytest.mark.parametrize(("lines", "rest", "expected"), TABLE, ids=str)
def test_reports_lead_to_their_verdict(lines: list[str], rest: Mapping[str, object], expected: object) -> None:
    situation = replace(Situation(len(lines), read_reports(lines)), **rest)  # type: ignore[arg-type] # by name
    assert name(decide(situation)) == expected


def test_a_resize_that_adds_no_worker_needs_no_copies() -> None:
    reports = read_reports(["resize state", "resize state"])
    alone = decide(Situation(2, reports))
    others = decide(Situation(2, reports, newcomers=1))
    late = decide(Situation(2, reports | {1: Report(JoinReason.CONTINUE, has_state=True)}))
    assert [each.removed_only for each in (alone, others, late) if isinstance(each, Verdict)] == [True, False, False]


def test_a_repeated_verdict_copies_the_state_to_workers_that_came_meanwhile() -> None:
    reports = {0: Report(JoinReason.FORM, has_state=True)}
    alone = decide(Situation(1, reports, former=RESIZED))
    others = decide(Situation(1, reports, newcomers=1, former=RESIZED))
    assert [each.removed_only for each in (alone, others) if isinstance(each, Verdict)] == [True, False]


def test_an_end_names_the_cause_the_obstacle_and_a_remedy() -> None:
    reports = read_reports(["", "continue 'pending=allreduce.w@8!its tensor was changed in place'"])
    answer = decide(Situation(2, reports, cause="rank 0 (a:0) was killed by SIGKILL (signal 9)"))
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


@few
@given(losses())
def test_every_pending_operation_is_decided_once_and_nothing_committed_is_revoked(loss: Loss) -> None:
    answer = decide(Situation(loss.size, loss.reports))
    if isinstance(answer, Verdict) and answer.decision is Decision.RETRY:
        check_retry(loss.size, loss.reports, answer)
        assert set(answer.survivors) == set(loss.reports)


@few
@given(losses(only_repeatable=True))
def test_repeatable_operations_never_lead_to_a_restore(loss: Loss) -> None:
    answer = decide(Situation(loss.size, loss.reports))
    assert name(answer) is Decision.RETRY


@few
@given(losses())
def test_truthful_reports_do_not_contradict_each_other(loss: Loss) -> None:
    answer = decide(Situation(loss.size, loss.reports))
    assert not (isinstance(answer, End) and "fault of hvdrun" in answer.reason)


@few
@given(losses(has_state=True))
def test_with_a_state_no_loss_ends_the_job(loss: Loss) -> None:
    assert name(decide(Situation(loss.size, loss.reports))) in {Decision.RETRY, Decision.RESTORE}


@few
@given(losses(), st.integers(1, 6), st.integers(0, 3))
def test_no_verdict_makes_a_generation_too_small(loss: Loss, least: int, newcomers: int) -> None:
    answer = decide(Situation(loss.size, loss.reports, least, newcomers))
    if isinstance(answer, Verdict):
        taken = 0 if answer.decision is Decision.RETRY else newcomers
        assert len(loss.reports) + taken >= least


@few
@given(losses(), st.data())
def test_the_order_in_which_they_report_does_not_matter(loss: Loss, data: st.DataObject) -> None:
    order = data.draw(st.permutations(list(loss.reports)))
    shuffled = {rank: loss.reports[rank] for rank in order}
    assert decide(Situation(loss.size, loss.reports)) == decide(Situation(loss.size, shuffled))


def test_the_cause_of_an_interruption_is_named_once() -> None:
    restored = Report(reason=JoinReason.RESTORE, has_state=True, error="no luck")
    reports = {0: Report(reason=JoinReason.CONTINUE, has_state=True), 1: restored}
    reason = "rank 1 has restored its last commit: no luck"
    for cause, reported in (("no luck", reason), ("host b was lost", f"host b was lost; {reason}")):
        verdict = decide(Situation(2, reports, cause=cause))
        assert isinstance(verdict, Verdict)
        assert verdict.reason == reported
