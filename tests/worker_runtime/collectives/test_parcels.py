"""Which tensors are moved together."""

from worker_runtime.collectives.parcels import sort_parcels


def test_small_ones_travel_together_large_ones_alone_and_empty_ones_not_at_all() -> None:
    large = 1 << 30
    assert sort_parcels([3, 0, large, 5, large]) == [(0, 3), (2,), (4,)]
    assert sort_parcels([0, large]) == [(1,)]
    assert sort_parcels([0, 0]) == []
