"""What the stories and laws of the rules do not show: values, cases by kind, and what a request costs."""

import copy

import pytest

from tests.rendezvous.counting import count_steps
from tests.worker_runtime.coordination.ordering.transcript import play
from worker_runtime.coordination.ordering.ordering import IllegalRequestError, Ordering
from worker_runtime.coordination.ordering.requests import Failure, Kind, Reduction, Request, Signature

LOSS = Request(0, "allreduce.loss", Signature(Kind.ALLREDUCE, ("float32",), ((),), Reduction.SUM))
JOIN = Request(0, "join", Signature(Kind.JOIN))


def test_all_ranks_wait_for_a_vanished_one_whose_requests_do_not_count() -> None:
    ordering = Ordering(3)
    other = Request(0, "allreduce.other", LOSS.signature)
    ordering.ask(1, LOSS)
    ordering.ask(0, LOSS)
    ordering.ask(1, other)
    ordering.ask(1, JOIN)
    ordering.vanish(1)
    ordering.vanish(1)
    assert [(each.asked, each.missing) for each in ordering.find_pending()] == [((0,), (1, 2))]
    assert ordering.ask(2, LOSS) == []
    assert ordering.block(0, 0, LOSS.name) + ordering.block(2, 0, LOSS.name) == []
    (refusal,) = ordering.leave(1)
    assert refusal.ranks == (0, 2)
    ordering.vanish(1)
    with pytest.raises(IllegalRequestError):
        ordering.vanish(3)


def test_a_rank_that_has_vanished_may_be_lost() -> None:
    ordering = Ordering(2)
    ordering.vanish(1)
    ordering.ask(0, LOSS)
    assert ordering.lose(1, "was lost: it failed") == [Failure("rank 1 was lost: it failed")]
    ordering.vanish(0)


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET, Kind.FAIL}))
@pytest.mark.parametrize("tolerant", ["no", "yes"])
def test_a_joined_rank_is_tolerated_by_kind_or_by_what_the_signature_says(kind: Kind, tolerant: str) -> None:
    (response,) = play("size 2", "join 1", f"ask 0 x kind={kind.name} tolerant={tolerant}")
    if tolerant == "yes" or kind in (Kind.ALLREDUCE, Kind.COMMIT):
        assert response.joined == (1,)
    else:
        assert response.ranks == (0,)
        assert response.reason.startswith(f"{kind.name} is not supported with Join at this time")


def test_of_a_deadlock_of_many_ranks_six_are_named() -> None:
    commands = [f"{what} {rank} allreduce.{rank}" for rank in range(8) for what in ("ask", "block")]
    refusals = play("size 8", *commands)
    assert "rank 5 waits for allreduce '5'; ..." in refusals[0].reason
    assert "rank 6 waits" not in refusals[0].reason


def test_the_steady_state_leaves_nothing_behind() -> None:
    ordering = Ordering(3)
    requests = [Request(0, f"allreduce.{number}", LOSS.signature) for number in range(50)]
    for rank in range(3):
        for request in requests:
            ordering.ask(rank, request)
    state = copy.deepcopy(vars(ordering))
    for rank in range(3):
        for request in requests:
            ordering.ask(rank, request)
    changed = {key for key, value in vars(ordering).items() if value != state[key]}
    assert changed == {"_next_index", "_next_number"}


def test_a_request_costs_no_more_while_a_thousand_others_wait() -> None:
    idle, busy = Ordering(2), Ordering(2)
    for number in range(1000):
        busy.ask(0, Request(0, f"allreduce.{number}", LOSS.signature))

    def count(ordering: Ordering) -> int:
        return count_steps(lambda: (ordering.ask(0, LOSS), ordering.ask(1, LOSS)))

    assert count(busy) < 2 * count(idle)
