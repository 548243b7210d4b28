"""What `hvd.prepare` does alike in every framework: which samples and which device are a worker's."""

from itertools import chain, count, islice

import pytest

from worker_runtime.preparation import RankOrder, choose_device, count_share, share_order, share_stream

TOTALS = (0, 1, 2, 5, 6, 7)
SIZES = (1, 2, 3, 8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("total", TOTALS)
def test_shares_are_equally_long_and_together_the_whole_in_its_order(total: int, size: int) -> None:
    whole = list(range(100, 100 + total))
    streamed = [list(share_stream(iter(whole), rank, size)) for rank in range(size)]
    for shares in ([share_order(whole, rank, size) for rank in range(size)], streamed):
        assert {len(share) for share in shares} == {count_share(total, size)}
        rows = list(chain(*zip(*shares, strict=True)))
        assert rows[:total] == whole
        assert set(rows[total:]) <= set(whole)


def test_an_endless_stream_is_shared() -> None:
    assert list(islice(share_stream(count(), 1, 3), 4)) == [1, 4, 7, 10]


def test_a_sampler_without_a_length_has_no_share_of_it() -> None:
    with pytest.raises(TypeError, match="object of type 'count' has no len"):
        len(RankOrder(count()))


@pytest.mark.parametrize(("seen", "local_rank", "expected"), [(4, 3, 3), (1, 0, 0), (1, 5, 0)])
def test_the_device_is_that_of_the_local_rank_or_the_only_one(seen: int, local_rank: int, expected: int) -> None:
    assert choose_device(seen, local_rank) == expected


def test_a_worker_without_a_device_is_reported() -> None:
    with pytest.raises(ValueError, match="no GPU for the worker of local rank 2: it sees 2 GPUs; start at most 2"):
        choose_device(2, 2)
