"""The reports of survivors answer what they are asked, however many there are."""

from functools import partial

from rendezvous.core.reports import CompletedOperation, JoinReason, PendingOperation, Report, Survivors
from tests.rendezvous.counting import count_steps

PAIR = (0, 1)


def test_an_operation_that_sent_a_rank_back_is_completed_but_not_used() -> None:
    pending = PendingOperation(PAIR, "check", "check")
    done = CompletedOperation(PAIR, "check", 3)
    before = CompletedOperation(PAIR, "x", 2)
    survivors = Survivors(
        2, {0: Report(pending=(pending,)), 1: Report(JoinReason.RESIZE, has_state=True, completed=(before, done))}
    )
    assert survivors.find_completer(0, pending) is None
    assert survivors.is_completed_elsewhere(0, pending)
    earlier = PendingOperation(PAIR, "x", "x")
    survivors = Survivors(2, {0: Report(pending=(earlier,)), 1: Report(JoinReason.RESIZE, completed=(before, done))})
    assert survivors.find_completer(0, earlier) == 1


def ask_everything(size: int) -> None:
    """Ask all there is to ask about a generation of this size."""
    everybody = tuple(range(size))
    reports = {
        rank: Report(
            pending=(PendingOperation(everybody, "commit.1", "commit", 3),),
            completed=tuple(CompletedOperation(everybody, "x", index) for index in range(4)),
            seen=3,
        )
        for rank in range(size - 1)
    }
    survivors = Survivors(size, reports)
    for rank, operation in survivors.list_pending():
        survivors.find_out_of_window(rank, operation)
        survivors.find_completer(rank, operation)
        survivors.find_least_round(operation.ranks)
        survivors.find_lost(operation.ranks)


def test_the_work_grows_with_the_number_of_survivors_and_not_with_its_square() -> None:
    small, large = (count_steps(partial(ask_everything, size)) for size in (100, 800))
    assert large < 10 * small
