"""Laws and cases of the fusion plan."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_runtime.core.buckets import Item, plan_buckets

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
def test_every_item_is_in_exactly_one_bucket(items: list[Item]) -> None:
    planned = [index for bucket in plan_buckets(items, 10, 40) for index in bucket]
    assert sorted(planned) == list(range(len(items)))


@given(ITEMS)
def test_a_bucket_holds_one_kind_and_only_a_lone_item_exceeds_the_bound(items: list[Item]) -> None:
    for bucket in plan_buckets(items, 10, 40):
        assert len({items[index].kind for index in bucket}) == 1
        assert len(bucket) == 1 or sum(items[index].size for index in bucket) <= 40
