"""The plan of gradient buckets: which gradients are reduced together, and in which order buckets become complete.

A separate message for each gradient costs about 0.4 ms, so gradients are packed into buckets. The plan depends only on
values that are the same on all ranks (the parameters' order, sizes, kinds and groups, and the negotiated order of
readiness), so that every rank computes the same plan.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
BUCKET_BYTES = 25 * MEBIBYTE
FIRST_BUCKET_BYTES = MEBIBYTE  # a small first bucket starts the transfer early


@dataclass(frozen=True, slots=True)
class Item:
    """One gradient.

    size: its size in bytes.
    kind: its dtype and device; a bucket has gradients of one kind, unless they are of one group.
    group: its group, which has a separate bucket; None for no group.
    """

    size: int
    kind: Hashable
    group: Hashable = None


def plan_buckets(
    items: Sequence[Item],
    first_bytes: int = FIRST_BUCKET_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
    order: Iterable[int] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Pack `items` into buckets of indices, in the order in which backward is expected to complete them.

    A bucket is closed when the next item would exceed its bound. An item larger than the bound has a separate bucket; a
    group has one bucket of any size.

    Args:
        items: all gradients.
        first_bytes: the bound of the bucket that is closed first.
        bucket_bytes: the bound of the others.
        order: all indices, in the order in which the gradients become ready. None for the reverse order of the items,
            which is roughly that of backward.
    """
    closed: list[tuple[int, list[int]]] = []  # each with the place in the order at which it is complete
    filling: dict[Hashable, tuple[int, list[int]]] = {}
    filled: dict[Hashable, int] = {}
    for place, index in enumerate(reversed(range(len(items))) if order is None else order):
        item = items[index]
        if item.group is None:
            key = ("kind", item.kind)
        else:
            key = ("group", item.group)

        _, bucket = filling.get(key, (0, []))
        bound = first_bytes
        if closed:
            bound = bucket_bytes
        if bucket and item.group is None and filled[key] + item.size > bound:
            closed.append(filling[key])
            bucket = []
        if not bucket:
            filled[key] = 0
        bucket.append(index)
        filling[key] = place, bucket
        filled[key] += item.size

    return tuple(tuple(bucket) for _, bucket in sorted([*closed, *filling.values()]))
