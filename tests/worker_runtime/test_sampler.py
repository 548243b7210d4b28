"""Which samples a worker gets, and which count as processed when workers are lost and come.

(Long because losses, commits and deals meet in many ways, each a story of a few lines.)
"""

import pickle
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.sampled_job import Job, Seat, play_job
from worker_runtime import sampler as samplers
from worker_runtime.sampler import ElasticSampler

EVENTS = (
    *("lost before", "lost between", "left alone between", "lost after", "alone"),
    *("joined", "restored", "unsynced", "padding", "looked"),
)
chances = st.randoms(use_true_random=False, note_method_calls=False)


@pytest.fixture
def seat(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The runtime as a sampler sees it; a test sets its `executor`."""
    runtime = SimpleNamespace(executor=Seat.take(0, 1))
    monkeypatch.setattr(samplers, "RUNTIME", runtime)
    return runtime


def deal(runtime: SimpleNamespace, size: int, count: int, **options: object) -> list[list[int]]:
    """The indices that each rank gets."""
    dealt = []
    for rank in range(size):
        runtime.executor = Seat.take(rank, size)
        sampler = ElasticSampler(range(count), **options)  # type: ignore[arg-type]  # the options are given by the tests
        dealt.append(list(sampler))
        assert len(sampler) == len(dealt[-1]) == sampler.num_samples
        assert sampler.total_size == size * sampler.num_samples
        assert (sampler.num_replicas, sampler.rank) == (size, rank)
    return dealt


def test_every_sample_goes_to_one_rank_by_strides(seat: SimpleNamespace) -> None:
    assert deal(seat, 2, 6, shuffle=False) == [[0, 2, 4], [1, 3, 5]]


def test_the_first_are_dealt_out_twice_where_they_do_not_suffice(seat: SimpleNamespace) -> None:
    assert deal(seat, 2, 5, shuffle=False) == [[0, 2, 4], [1, 3, 0]]


@pytest.mark.parametrize(("count", "expected"), [(2, [[0], [1], [0], [1], [0]]), (0, [[]] * 5)])
def test_a_data_set_may_be_smaller_than_the_job(seat: SimpleNamespace, count: int, expected: list[list[int]]) -> None:
    """Horovod asserts that it is not."""
    assert deal(seat, 5, count, shuffle=False) == expected
    sampler = ElasticSampler(range(count))
    sampler.record_batch(0, 4)
    assert sampler.processed_num == count
    sampler.reset()
    assert list(sampler) == []


def test_the_order_is_that_of_pythons_generator_seeded_with_seed_and_epoch(seat: SimpleNamespace) -> None:
    order = list(range(8))
    random.Random(7).shuffle(order)  # noqa: S311 - an order
    assert deal(seat, 2, 8, seed=7) == [order[::2], order[1::2]]
    sampler = ElasticSampler(range(8), seed=5)
    sampler.set_epoch(2)
    assert (sampler.remaining_indices, sampler.epoch) == (order, 2)


def test_what_was_processed_is_not_dealt_out_again_after_a_change_of_size(seat: SimpleNamespace) -> None:
    seat.executor = Seat.take(0, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    sampler.record_batch(0, 2)
    state = sampler.state_dict()
    assert state == {"epoch": 0, "processed_num": 4, "ledger": ((2, ((2, ()),)),)}
    seat.executor = Seat.take(1, 3)
    sampler.reset()
    assert (sampler.remaining_indices, list(sampler)) == ([4, 5, 6, 7, 8, 9], [5, 8])
    assert sampler.state_dict() == state
    other = ElasticSampler(range(10), shuffle=False)
    other.load_state_dict(state)
    assert (list(other), other.processed_num) == ([5, 8], 4)
    other.set_epoch(1)
    assert (other.processed_num, list(other)) == (0, [1, 4, 7, 0])
    assert other.state_dict() == {"epoch": 1, "processed_num": 0, "ledger": ()}


def test_a_state_of_horovods_means_the_first_samples(seat: SimpleNamespace) -> None:
    seat.executor = Seat.take(1, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    sampler.load_state_dict({"epoch": 3, "processed_num": 5})
    assert (sampler.epoch, sampler.processed_num, list(sampler)) == (3, 5, [6, 8, 5])
    sampler.record_batch(0, 1)
    sampler.reset()
    assert (sampler.processed_num, sampler.remaining_indices) == (7, [7, 8, 9])


@pytest.mark.parametrize("commits", [False, True])
def test_the_last_batch_is_not_counted_beyond_the_end(seat: SimpleNamespace, commits: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """Horovod counts batches of full size, also beyond the data set."""
    seat.executor = Seat.take(0, 2)
    sampler = ElasticSampler(range(5), shuffle=False)
    for batch, processed in enumerate((4, 5, 5)):
        if commits:
            seat.executor.commit()
        sampler.record_batch(batch, 2)
        assert sampler.processed_num == sampler.state_dict()["processed_num"] == processed
    assert sampler.state_dict()["ledger"] == ((2, ((3, ()),)),)
    sampler.reset()
    assert (sampler.processed_num, list(sampler), len(sampler)) == (5, [], 0)


def test_a_batch_counts_for_those_who_took_part_in_its_step(seat: SimpleNamespace) -> None:
    executor = seat.executor = Seat.take(1, 3)
    sampler = ElasticSampler(range(12), shuffle=False)
    executor.commit()
    sampler.record_batch(0, 1)
    executor.commit(0)  # its batch, 3, is left, and so is what it still had: 6 and 9
    sampler.record_batch(1, 1)
    executor.commit()
    executor.lineage = (1,)  # it was lost when the step had been committed: 8 is processed
    sampler.record_batch(2, 1)
    assert (sampler.processed_num, sampler.rank, sampler.num_replicas) == (7, 1, 3)
    assert sampler.state_dict()["ledger"] == ((3, ((1, ()), (2, (0,)))),)
    seat.executor = Seat.take(0, 1)
    sampler.reset()
    assert list(sampler) == [3, 6, 9, 10, 11]


def test_a_batch_without_a_step_of_its_own_waits_for_the_next_one(seat: SimpleNamespace) -> None:
    """Its gradient is accumulated: a worker that is lost before the step takes it along."""
    executor = seat.executor = Seat.take(0, 2)
    sampler = ElasticSampler(range(20), shuffle=False)
    for batch in range(4):
        if batch % 2:
            executor.commit()
        sampler.record_batch(batch, 1)
    assert not sampler.may_differ
    sampler.record_batch(4, 1)
    assert sampler.processed_num == 10
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 8, "ledger": ((2, ((4, ()),)),)}
    executor.commit(1)
    assert sampler.state_dict()["ledger"] == ((2, ((4, ()), (1, (1,)))),)
    sampler.record_batch(5, 1)
    executor.lineage = (0,)
    sampler.record_batch(6, 1)  # also alone: the step is still to come
    assert sampler.state_dict()["ledger"] == ((2, ((4, ()), (1, (1,)))),)
    executor.commit()
    assert sampler.state_dict()["ledger"] == ((2, ((4, ()), (3, (1,)))),)


@pytest.mark.parametrize("lost", [(1,), (1, 2), (0, 1)])
def test_of_several_steps_with_a_batch_the_last_one_decides_however_few_are_left(
    seat: SimpleNamespace, lost: tuple[int, ...]
) -> None:
    executor = seat.executor = Seat.take(2 if 0 in lost else 0, 3)
    sampler = ElasticSampler(range(9), shuffle=False)
    executor.commit()
    executor.commit(*lost)  # their share is in the step before
    executor.commit()
    sampler.record_batch(0, 1)
    assert sampler.state_dict()["ledger"] == ((3, ((1, lost),)),)
    assert sampler.is_outdated
    sampler.reset()
    assert sampler.remaining_indices == [*lost, 3, 4, 5, 6, 7, 8]


def test_a_batch_that_waits_is_dealt_out_again(seat: SimpleNamespace) -> None:
    executor = seat.executor = Seat.take(0, 2)
    sampler = ElasticSampler(range(8), shuffle=False)
    for batch in range(2):
        executor.commit()
        sampler.record_batch(batch, 1)
    sampler.record_batch(2, 1)
    seat.executor = Seat.take(0, 2)
    sampler.reset()
    assert (sampler.remaining_indices, sampler.processed_num) == ([4, 5, 6, 7], 4)


def test_where_nothing_commits_a_batch_counts_for_those_who_are_there(seat: SimpleNamespace) -> None:
    executor = seat.executor = Seat.take(0, 3)
    sampler = ElasticSampler(range(12), shuffle=False)
    assert not sampler.may_differ
    sampler.record_batch(0, 2)
    executor.lineage = (0, 2)
    sampler.record_batch(1, 1)
    assert sampler.may_differ
    assert sampler.processed_num == 8
    assert sampler.state_dict()["ledger"] == ((3, ((2, ()), (1, (1,)))),)
    seat.executor = Seat.take(0, 2)
    sampler.reset()
    assert (sampler.remaining_indices, sampler.may_differ) == ([7, 9, 10, 11], False)


def test_what_waits_is_of_its_epoch(seat: SimpleNamespace) -> None:
    seat.executor = Seat.take(0, 2)
    sampler = ElasticSampler(range(8), shuffle=False)
    state = sampler.state_dict()
    sampler.record_batch(0, 1)
    sampler.load_state_dict(state)
    assert (sampler.remaining_indices, sampler.state_dict()) == (list(range(8)), state)
    sampler.record_batch(0, 1)
    sampler.set_epoch(1)
    assert (sampler.remaining_indices, sampler.processed_num) == (list(range(8)), 0)


def test_batches_of_a_validation_between_trainings_count_too(seat: SimpleNamespace) -> None:
    """Steps have been committed meanwhile, but not between its batches."""
    executor = seat.executor = Seat.take(0, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    for _ in range(5):
        executor.commit()
    for batch in range(3):
        sampler.record_batch(batch, 1)
    assert sampler.state_dict()["processed_num"] == 6


def test_a_deal_does_not_depend_on_who_has_heard_of_a_loss(seat: SimpleNamespace) -> None:
    """Else ranks would make steps of different numbers."""
    dealt = []
    for lineage in ((0, 1, 2), (0, 2)):
        executor = seat.executor = Seat.take(2, 3)
        executor.commit()
        executor.lineage = lineage
        sampler = ElasticSampler(range(9), shuffle=False)
        sampler.set_epoch(1)
        dealt.append((sampler.rank, list(sampler)))
        executor.committed = 2, (0, 2)
        sampler.set_epoch(2)
        dealt.append((sampler.rank, list(sampler)))
    assert dealt[:2] == dealt[2:] == [(2, [2, 5, 8]), (1, [1, 3, 5, 7, 0])]


def test_a_deal_is_outdated_once_a_step_was_committed_without_one_of_its_ranks(seat: SimpleNamespace) -> None:
    executor = seat.executor = Seat.take(0, 3)
    sampler = ElasticSampler(range(9), shuffle=False)
    executor.commit()
    sampler.record_batch(0, 1)
    executor.lineage = (0, 2)  # what the lost one had up to now is processed
    assert not sampler.is_outdated
    executor.commit()
    sampler.record_batch(1, 1)
    assert sampler.is_outdated
    sampler.reset()
    assert (sampler.is_outdated, sampler.remaining_indices) == (False, [4, 6, 7, 8])


def test_a_deal_is_not_outdated_where_the_lost_have_left_nothing(seat: SimpleNamespace) -> None:
    executor = seat.executor = Seat.take(0, 3)
    sampler = ElasticSampler(range(6), shuffle=False)
    executor.commit()
    sampler.record_batch(0, 2)
    executor.commit(1)  # of the next epoch, or of another sampler's
    assert not sampler.is_outdated


@pytest.mark.parametrize(("origin", "warned"), [(0, ["3 samples of epoch 0"]), (2, [])])
def test_samples_that_an_epoch_leaves_are_warned_of_once(seat: SimpleNamespace, origin: int, warned: list[str]) -> None:
    executor = seat.executor = Seat.take(origin, 3)
    sampler = ElasticSampler(range(9), shuffle=False)
    executor.commit(1)
    sampler.record_batch(0, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sampler.set_epoch(1)
        executor.commit()
        sampler.record_batch(0, 9)
        sampler.set_epoch(2)
    assert [str(warning.message).split(" are")[0] for warning in caught] == warned


def test_who_is_alone_gets_all(seat: SimpleNamespace) -> None:
    executor = seat.executor = Seat.take(1, 2)
    executor.lineage = (1,)
    sampler = ElasticSampler(range(4), shuffle=False)
    assert (list(sampler), sampler.rank, sampler.num_replicas) == ([0, 1, 2, 3], 0, 1)
    sampler.record_batch(0, 3)
    assert sampler.state_dict()["ledger"] == ((1, ((3, ()),)),)


@pytest.mark.usefixtures("seat")
def test_a_sampler_can_be_pickled() -> None:
    sampler = ElasticSampler(range(4), seed=3)
    sampler.record_batch(0, 1)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own
    assert (list(copy), copy.state_dict()) == (list(sampler), sampler.state_dict())


def test_ranks_of_a_job_share_the_samples(ranks: RankPool) -> None:
    def body() -> object:
        return list(ElasticSampler(range(7), seed=3))

    first, second = ranks.run(body)
    assert sorted({*first, *second}) == list(range(7))
    assert len(first) == len(second) == 4


@settings(max_examples=150)
@given(chance=chances)
def test_each_sample_counts_once_per_epoch_over_losses_growth_and_restores(chance: random.Random) -> None:
    with pytest.MonkeyPatch.context() as patch:
        runtime = SimpleNamespace(executor=None)
        patch.setattr(samplers, "RUNTIME", runtime)
        play_job(Job(chance, runtime), epochs=2)


def test_so_it_is_in_many_seeds() -> None:
    counts = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for seed in range(300):
            runtime = SimpleNamespace(executor=None)
            patch.setattr(samplers, "RUNTIME", runtime)
            job = Job(random.Random(seed), runtime)  # noqa: S311 - a history
            try:
                play_job(job, epochs=2)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error
            counts += job.counts
    assert min(counts[event] for event in EVENTS) > 50
