"""The fusion plan: which gradients travel together.

One small message per gradient costs about 0.4 ms each, so gradients are packed into buckets. The plan follows from
the parameters' order, sizes and kinds alone, so that every rank computes the same plan without talking.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
BUCKET_BYTES = 25 * MEBIBYTE
FIRST_BUCKET_BYTES = MEBIBYTE  # backward finishes the last layers first: a small first bucket starts the transfer early


@dataclass(frozen=True, slots=True)
class Item:
    """One gradient: its size in bytes, and its kind; only gradients of one kind (dtype and device) share a bucket."""

    size: int
    kind: Hashable


def plan_buckets(
    items: Sequence[Item], first_bytes: int = FIRST_BUCKET_BYTES, bucket_bytes: int = BUCKET_BYTES
) -> tuple[tuple[int, ...], ...]:
    """Pack `items` into buckets of indices, in the order in which backward is expected to fill them.

    Backward finishes gradients roughly in the reverse order of the parameters, so the last items come first. A bucket
    is closed when the next item would make it larger than its bound; an item larger than the bound has one of its own.
    """
    closed: list[tuple[int, ...]] = []
    open_buckets: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    for index in reversed(range(len(items))):
        item = items[index]
        bucket = open_buckets.setdefault(item.kind, [])
        bound = bucket_bytes if closed else first_bytes
        if bucket and filled[item.kind] + item.size > bound:
            closed.append(tuple(bucket))
            bucket = open_buckets[item.kind] = []
        if not bucket:
            filled[item.kind] = 0
        bucket.append(index)
        filled[item.kind] += item.size
    rest = [tuple(bucket) for bucket in open_buckets.values() if bucket]
    return (*closed, *sorted(rest, reverse=True))
