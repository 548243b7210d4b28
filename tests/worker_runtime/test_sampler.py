"""Which samples a worker gets."""

import random

import pytest

from tests.worker_runtime.ranks import RankPool
from worker_runtime.membership import Assignment
from worker_runtime.runtime import RUNTIME
from worker_runtime.sampler import ElasticSampler


def play(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """Be a rank of a world of that size, as far as numbers go."""
    world = RUNTIME._require()
    numbers = Assignment(rank, size, rank, size, 0, 1)
    monkeypatch.setattr(RUNTIME, "_world", type(world)(numbers, world.executor))


@pytest.fixture(autouse=True)
def job() -> object:
    RUNTIME.init()
    yield
    RUNTIME.shutdown()


def deal(monkeypatch: pytest.MonkeyPatch, size: int, count: int, **options: object) -> list[list[int]]:
    """The indices that each rank gets."""
    dealt = []
    for rank in range(size):
        play(monkeypatch, rank, size)
        sampler = ElasticSampler(range(count), **options)  # type: ignore[arg-type]  # the options are given by the tests
        dealt.append(list(sampler))
        assert len(sampler) == len(dealt[-1]) == sampler.num_samples
        assert sampler.total_size == size * sampler.num_samples
        assert (sampler.num_replicas, sampler.rank) == (size, rank)
    monkeypatch.undo()
    return dealt


def test_every_sample_goes_to_one_rank_by_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deal(monkeypatch, 2, 6, shuffle=False) == [[0, 2, 4], [1, 3, 5]]


def test_the_first_are_dealt_out_twice_where_they_do_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deal(monkeypatch, 2, 5, shuffle=False) == [[0, 2, 4], [1, 3, 0]]


@pytest.mark.parametrize(("count", "expected"), [(2, [[0], [1], [0], [1], [0]]), (0, [[]] * 5)])
def test_a_data_set_may_be_smaller_than_the_job(
    monkeypatch: pytest.MonkeyPatch, count: int, expected: list[list[int]]
) -> None:
    assert deal(monkeypatch, 5, count, shuffle=False) == expected


def test_the_order_is_that_of_pythons_generator_seeded_with_seed_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    order = list(range(8))
    random.Random(7).shuffle(order)  # noqa: S311 - an order
    assert deal(monkeypatch, 2, 8, seed=7) == [order[::2], order[1::2]]
    sampler = ElasticSampler(range(8), seed=5)
    sampler.set_epoch(2)
    assert (list(sampler), sampler.epoch) == (order, 2)


def test_what_was_processed_is_not_dealt_out_again_after_a_change_of_size(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, 0, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    sampler.record_batch(0, 2)
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4}
    play(monkeypatch, 1, 3)
    sampler.reset()
    assert (sampler.remaining_indices, list(sampler)) == ([4, 5, 6, 7, 8, 9], [5, 8])
    other = ElasticSampler(range(10), shuffle=False)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == [5, 8]
    other.set_epoch(1)
    assert (other.processed_num, list(other)) == (0, [1, 4, 7, 0])
    monkeypatch.undo()


def test_the_last_batch_is_not_counted_beyond_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, 0, 2)
    sampler = ElasticSampler(range(5), shuffle=False)
    for batch in range(2):
        sampler.record_batch(batch, 2)
    sampler.reset()
    assert (sampler.processed_num, list(sampler), len(sampler)) == (5, [], 0)
    monkeypatch.undo()


def test_ranks_of_a_job_share_the_samples(ranks: RankPool) -> None:
    def body() -> object:
        return list(ElasticSampler(range(7), seed=3))

    first, second = ranks.run(body)
    assert sorted({*first, *second}) == list(range(7))
    assert len(first) == len(second) == 4
