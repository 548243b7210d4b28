"""Laws and cases of the fusion plan."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_runtime.plans.buckets import Item, plan_buckets

ITEMS = st.lists(st.builds(Item, size=st.integers(0, 50), kind=st.sampled_from(["f32", "f16"])), max_size=30)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], ()),
        ([4], ((0,),)),
        ([4, 4, 4, 4], ((3, 2), (1, 0))),
        ([9, 9, 4, 9], ((3,), (2, 1), (0,))),
        ([99, 1, 1], ((2, 1), (0,))),
    ],
)
def test_the_last_parameters_come_first_and_the_first_bucket_is_smaller(
    sizes: list[int], expected: tuple[tuple[int, ...], ...]
) -> None:
    assert plan_buckets([Item(size, "f32") for size in sizes], first_bytes=9, bucket_bytes=16) == expected


@given(ITEMS)
def test_a_bucket_holds_one_kind_and_only_a_lone_item_exceeds_the_bound(items: list[Item]) -> None:
    for bucket in plan_buckets(items, 10, 40):
        assert len({items[index].kind for index in bucket}) == 1
        assert len(bucket) == 1 or sum(items[index].size for index in bucket) <= 40


def test_the_order_of_readiness_decides_which_items_share_a_bucket() -> None:
    items = [Item(4, "f32") for _ in range(5)]
    assert plan_buckets(items, 4, 8, order=[1, 3, 0, 4, 2]) == ((1,), (3, 0), (4, 2))


def test_buckets_come_in_the_order_in_which_they_are_complete() -> None:
    items = [Item(4, "f32"), Item(4, "f16"), Item(4, "f32"), Item(4, "f16")]
    assert plan_buckets(items, 100, 100, order=[0, 1, 3, 2]) == ((1, 3), (0, 2))


def test_a_group_has_a_bucket_of_its_own_whatever_its_size_and_kinds() -> None:
    items = [Item(9, "f32", "a"), Item(1, "f32"), Item(9, "f16", "a"), Item(1, "f32"), Item(1, "f32", "b")]
    assert plan_buckets(items, 4, 4) == ((4,), (3, 1), (2, 0))


@given(ITEMS, st.randoms(use_true_random=False))
def test_every_order_is_a_plan_of_all_items(items: list[Item], random: Random) -> None:
    order = list(range(len(items)))
    random.shuffle(order)
    buckets = plan_buckets(items, 10, 40, order)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(items)))
    complete = [max(order.index(index) for index in bucket) for bucket in buckets]
    assert complete == sorted(complete)
