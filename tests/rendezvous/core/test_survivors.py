"""The reports of survivors answer what they are asked, however many there are."""

from functools import partial

from rendezvous.core.reports import CompletedOperation, PendingOperation, Report, Wish
from rendezvous.core.survivors import Survivors
from tests.rendezvous.counting import count_steps

PAIR = (0, 1)


def test_who_is_left_of_a_set_and_who_is_not() -> None:
    survivors = Survivors(4, {3: Report(), 1: Report()})
    assert list(survivors.reports) == [1, 3]
    assert survivors.list_members((0, 1, 2, 3)) == [1, 3]
    assert survivors.find_lost((0, 1, 2, 3)) == 0
    assert survivors.find_lost((1, 3)) is None
    assert [survivors.is_everybody(ranks) for ranks in ((0, 1, 2, 3), (1, 3))] == [True, False]


def test_rounds_are_counted_by_set() -> None:
    first = PendingOperation(PAIR, "commit.1", "commit", 4)
    other = CompletedOperation((0,), "commit.1", 9, 7)
    survivors = Survivors(2, {0: Report(pending=(first,), completed=(other,)), 1: Report()})
    assert [survivors.find_round(rank, PAIR) for rank in PAIR] == [4, 0]
    assert survivors.find_round(0, (0,)) == 7
    assert (survivors.find_least_round(PAIR), survivors.find_least_round((0,))) == (0, 7)


def test_equal_sets_are_one_set_whether_or_not_they_are_one_tuple() -> None:
    pending = PendingOperation(tuple([0, 1]), "x", "x")  # noqa: C409 - a tuple of its own
    done = CompletedOperation(tuple([0, 1]), "x", 3)  # noqa: C409 - the same
    survivors = Survivors(2, {0: Report(pending=(pending,)), 1: Report(completed=(done,))})
    assert survivors.find_user(0, pending) == 1


def test_who_was_sent_back_by_an_operation_is_no_user_of_it_but_has_done_it() -> None:
    pending = PendingOperation(PAIR, "check", "check")
    done = CompletedOperation(PAIR, "check", 3)
    before = CompletedOperation(PAIR, "x", 2)
    survivors = Survivors(
        2, {0: Report(pending=(pending,)), 1: Report(Wish.RESIZE, has_state=True, completed=(before, done))}
    )
    assert survivors.find_user(0, pending) is None
    assert survivors.is_done_elsewhere(0, pending)
    earlier = PendingOperation(PAIR, "x", "x")
    survivors = Survivors(2, {0: Report(pending=(earlier,)), 1: Report(Wish.RESIZE, completed=(before, done))})
    assert survivors.find_user(0, earlier) == 1


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
        survivors.find_ahead(rank, operation)
        survivors.find_user(rank, operation)
        survivors.find_least_round(operation.ranks)
        survivors.find_lost(operation.ranks)


def test_the_work_grows_with_the_number_of_survivors_and_not_with_its_square() -> None:
    small, large = (count_steps(partial(ask_everything, size)) for size in (100, 800))
    assert large < 10 * small
