"""What was processed of an epoch, and that nothing else is known to be."""

import json
import random
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from worker_runtime.plans.samples import Deal, Ledger, SharedRows

chances = st.randoms(use_true_random=False, note_method_calls=False)


@pytest.mark.parametrize(
    ("count", "runs", "left"),
    [
        (10, [], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (10, [(2, ())], [6, 7, 8, 9]),
        (10, [(1, ()), (1, ())], [6, 7, 8, 9]),
        (10, [(1, ()), (1, (1,))], [4, 6, 7, 8, 9]),
        (10, [(1, (2,)), (2, (1, 2))], [2, 4, 5, 7, 8, 9]),
        (10, [(1, (0, 1, 2)), (1, ())], [0, 1, 2, 6, 7, 8, 9]),
        (10, [(4, ())], []),
        (10, [(3, ()), (1, (0,))], [9]),  # ranks 1 and 2 have processed 0 and 1 once more
        (4, [(1, (0,)), (1, ())], []),  # 0 was missed in its own place, and processed as padding
        (4, [(1, (1,)), (1, (1,))], []),  # 1, likewise
        (4, [(1, (1,)), (1, (2,))], [1]),  # would have been, by the absent rank
        (2, [(1, (0,))], []),
        (2, [(1, (0, 2))], [0]),
        (1, [(1, (0,))], []),
        (1, [(9, (0, 2))], []),  # more rows than there are
        (0, [(1, (1,))], []),
    ],
)
def test_samples_that_a_deal_among_three_leaves_keep_their_order(
    count: int, runs: list[tuple[int, tuple[int, ...]]], left: list[int]
) -> None:
    ledger = Ledger().deal(3)
    for rows, absent in runs:
        ledger = ledger.record(rows, absent)
    assert ledger.list_left(range(count)) == left
    assert ledger.list_left([str(sample) for sample in range(count)]) == [str(sample) for sample in left]


def test_a_deal_distributes_the_samples_that_earlier_deals_have_left() -> None:
    ledger = Ledger().deal(3).record(1, [1]).deal(2).record(2)
    assert ledger.list_left(range(8)) == [6, 7]  # of 1 3 4 5 6 7


def test_an_epoch_without_a_loss_is_a_few_numbers() -> None:
    ledger = Ledger().deal(512)
    for _ in range(1000):
        ledger = ledger.record(32)
    assert ledger.pack() == ((512, ((32000, ()),)),)
    assert ledger.deals[-1].num_places == 512 * 32000


def test_deals_of_which_nothing_was_processed_are_forgotten() -> None:
    assert Ledger().deal(2).deal(3).record(4).deal(5).deal(6).pack() == ((3, ((4, ()),)),)
    assert Ledger().deal(2).pack() == ()


def test_the_first_samples_can_be_skipped() -> None:
    assert Ledger.skip(3).deal(4).list_left(range(5)) == [3, 4]
    assert Ledger.skip(9).list_left(range(5)) == []
    assert Ledger.skip(0) == Ledger()


def test_a_ledger_comes_back_from_plain_numbers_also_through_json() -> None:
    ledger = Ledger().deal(3).record(1, [2, 1]).record(5).deal(2).record(1)
    assert ledger.pack() == ((3, ((1, (1, 2)), (5, ()))), (2, ((1, ()),)))
    assert Ledger.unpack(ledger.pack()) == ledger
    assert Ledger.unpack(json.loads(json.dumps(ledger.pack()))) == ledger


@pytest.mark.parametrize("packed", [((0, ()),), ((2, ((0, ()),)),), ((2, ((1, (2,)),)),), ((2,),)])
def test_bytes_that_are_no_ledger_are_refused(packed: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Ledger.unpack(packed)


def test_a_sample_that_was_not_dealt_out_cannot_be_recorded() -> None:
    ledger = Ledger().deal(2)
    for rows, absent in ((0, []), (-1, []), (1, [2])):
        with pytest.raises(ValueError, match=r"rows|ranks"):
            ledger.record(rows, absent)
    with pytest.raises(ValueError, match=r"deal\(\)"):
        Ledger().record(1)
    assert ledger == Ledger((Deal(2),))
    assert Deal(2, (SharedRows(1),)).record(1).runs == (SharedRows(2),)


@pytest.mark.parametrize(
    ("size", "absent", "expected"),
    [
        (2, (), [Deal(2, (SharedRows(2),))]),
        (3, (), [Deal(2, (SharedRows(2),)), Deal(3)]),
        (2, (1,), [Deal(2, (SharedRows(2, (1,)),)), Deal(2)]),
    ],
)
def test_a_deal_among_as_many_continues_where_all_are_as_far(
    size: int, absent: tuple[int, ...], expected: list[Deal]
) -> None:
    """What pads its last row is then what would have padded it."""
    ledger = Ledger().deal(2).record(2, absent).deal(size)
    assert ledger.deals == tuple(expected)
    assert ledger.list_dealt("abcde")[ledger.deals[-1].rows * size :] == ledger.list_left("abcde")


@settings(max_examples=100)
@given(chance=chances)
def test_each_sample_is_processed_once_over_losses_growth_and_restores(chance: random.Random) -> None:
    """Ranks that walk through their places, place by place, against the ledger that notes rows and absent ones."""
    order = list(range(chance.choice([0, 1, 2, 5, 20, 100])))
    chance.shuffle(order)
    ledger, seen = Ledger(), Counter[int]()
    saved = ledger, seen.copy()
    for _ in range(chance.randint(0, 12)):
        ledger = play_deal(chance, ledger, order, seen, chance.randint(1, 7))
        assert Ledger.unpack(ledger.pack()) == ledger
        event = chance.random()
        if event < 0.2:
            saved = ledger, seen.copy()
        elif event < 0.4:
            ledger, seen = saved[0], saved[1].copy()
    ledger = play_deal(chance, ledger, order, seen, 1, is_last=True)
    assert ledger.list_left(order) == []
    assert sorted(seen) == sorted(order)


def play_deal(
    chance: random.Random, ledger: Ledger, order: list[int], seen: Counter[int], size: int, *, is_last: bool = False
) -> Ledger:
    """Process a part of what is left, in batches, while ranks are lost; nothing is processed again but padding."""
    left = ledger.list_left(order)
    assert sorted(left) == sorted(sample for sample in order if not seen[sample])
    ledger = ledger.deal(size)
    dealt, row = ledger.list_dealt(order), ledger.deals[-1].rows
    assert dealt[row * size :] == left
    batch, rows = chance.randint(1, 9), -(-len(dealt) // size)
    alive = list(range(size))
    padding = Counter[int]()
    while row < rows and (is_last or chance.random() > 0.1):
        if len(alive) > 1 and chance.random() < 0.2:
            alive.remove(chance.choice(alive))
        taken = min(batch, rows - row)
        for place in range(row * size, (row + taken) * size):
            if place % size in alive:
                sample = dealt[place % len(dealt)]
                seen[sample] += 1
                padding[sample] += place >= len(dealt)
                assert seen[sample] - padding[sample] <= 1
        ledger = ledger.record(taken, set(range(size)).difference(alive))
        row += taken
    return Ledger(tuple(deal for deal in ledger.deals if deal.runs))
