"""Which tensors are moved together as bytes: small ones as one parcel, since each piece of communication costs."""

from collections.abc import Sequence

_LARGE_BYTES = 1024 * 1024


def sort_parcels(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Which indices travel together; those without bytes do not travel.

    Args:
        counts: how many bytes each has; all ranks must know them alike.
    """
    small = tuple(index for index, count in enumerate(counts) if 0 < count < _LARGE_BYTES)
    large: list[tuple[int, ...]] = [(index,) for index, count in enumerate(counts) if count >= _LARGE_BYTES]
    return [small, *large] if small else large
