"""Who may begin again follows from what a worker has declared, or has reported."""

import pytest

from rendezvous.core.model import Assignment, Slot, Worker
from rendezvous.core.records import WorkerRecord
from rendezvous.core.reports import PendingOperation, Report, Wish

RECORD = WorkerRecord(Worker(Slot("a", 0), 1), Assignment(0, 1, 0, 1, 0, 1))
BUSY = Report(Wish.CONTINUE, pending=(PendingOperation((0,), "x", "x"),))


@pytest.mark.parametrize(
    ("has_state", "report", "may"),
    [
        (False, None, False),
        (True, None, True),
        (False, BUSY, False),
        (True, BUSY, True),
        (False, Report(Wish.FORM), True),
    ],
)
def test_who_may_begin_again(has_state: bool, report: Report | None, may: bool) -> None:  # noqa: FBT001 - a table
    record = WorkerRecord(RECORD.worker, RECORD.assignment, has_state=has_state, report=report)
    assert record.may_begin_again is may
