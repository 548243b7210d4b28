"""The fusion plan: which gradients travel together, and in which order their buckets become complete.

One small message per gradient costs about 0.4 ms each, so gradients are packed into buckets. The plan follows from
what all ranks know alike (the parameters' order, sizes, kinds and groups, and an agreed order of readiness), so that
every rank computes the same plan.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024
BUCKET_BYTES = 25 * MEBIBYTE
FIRST_BUCKET_BYTES = MEBIBYTE  # a small first bucket starts the transfer early


@dataclass(frozen=True, slots=True)
class Item:
    """One gradient.

    size: in bytes.
    kind: only gradients of one kind (dtype and device) share a bucket, unless they are of one group.
    group: those of one group share a bucket, which has no others; None where the plan is free.
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

    A bucket is closed when the next item would make it larger than its bound; an item larger than the bound has one of
    its own, and a group has one whatever its size.

    Args:
        items: all of them.
        first_bytes: bound of the bucket that is closed first.
        bucket_bytes: bound of the others.
        order: all indices in the order in which the gradients become ready. None takes the reverse: backward finishes
            gradients roughly so.
    """
    closed: list[tuple[int, list[int]]] = []  # each with the place in the order at which it is complete
    filling: dict[Hashable, tuple[int, list[int]]] = {}
    filled: dict[Hashable, int] = {}
    for place, index in enumerate(reversed(range(len(items))) if order is None else order):
        item = items[index]
        key = ("kind", item.kind) if item.group is None else ("group", item.group)
        _, bucket = filling.get(key, (0, []))
        bound = bucket_bytes if closed else first_bytes
        if bucket and item.group is None and filled[key] + item.size > bound:
            closed.append(filling[key])
            bucket = []
        if not bucket:
            filled[key] = 0
        bucket.append(index)
        filling[key] = place, bucket
        filled[key] += item.size
    return tuple(tuple(bucket) for _, bucket in sorted([*closed, *filling.values()]))
