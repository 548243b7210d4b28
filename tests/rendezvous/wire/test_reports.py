"""Every report and every verdict arrives as it was, short where thousands say the same, and nonsense is refused."""

import pytest
from hypothesis import given

from protos import rendezvous_pb2 as pb
from rendezvous import wire
from rendezvous.core.reports import CompletedOperation, Decision, Report, Verdict, Wish
from rendezvous.errors import WireError
from tests.rendezvous.wire.messages import READABLE, UNDECODABLE, reports, verdicts


@given(reports)
def test_a_report_survives_the_wire(report: Report) -> None:
    assert wire.decode_report(pb.StateReport.FromString(wire.encode_report(report).SerializeToString())) == report


@given(verdicts)
def test_a_verdict_survives_the_wire(verdict: Verdict) -> None:
    assert wire.decode_verdict(pb.Verdict.FromString(wire.encode_verdict(verdict).SerializeToString())) == verdict


def test_a_worker_that_says_nothing_begins() -> None:
    assert wire.decode_report(pb.StateReport()) == Report(seen=0)
    assert wire.decode_verdict(pb.Verdict()) == Verdict(Decision.BEGIN)


def test_what_a_user_has_named_oddly_arrives_readable() -> None:
    report = wire.decode_report(wire.encode_report(Report(Wish.CONTINUE, trouble=UNDECODABLE)))
    assert report.trouble == READABLE


def test_the_set_of_all_ranks_is_short_and_one_tuple_for_all() -> None:
    done = tuple(CompletedOperation(tuple(range(1000)), "x", index) for index in range(100))
    message = wire.encode_report(Report(completed=done))
    assert message.ByteSize() < 100 * 20
    completed = wire.decode_report(message).completed
    assert completed == done
    assert len({id(operation.ranks) for operation in completed}) == 1


@pytest.mark.parametrize(
    ("report", "what"),
    [
        (pb.StateReport(wish=pb.Wish.ValueType(77)), "a wish of kind 77"),
        (pb.StateReport(pending=[pb.OperationState(name="x")]), "an operation 'x' of nobody"),
        (pb.StateReport(completed=[pb.OperationState(name="x", ranks=[0])]), "'x' without its place in the order"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(report: pb.StateReport, what: str) -> None:
    with pytest.raises(WireError, match=what):
        wire.decode_report(report)


def test_a_decision_that_nobody_knows_is_refused() -> None:
    with pytest.raises(WireError, match="a decision of kind 77"):
        wire.decode_verdict(pb.Verdict(decision=pb.Decision.ValueType(77)))
