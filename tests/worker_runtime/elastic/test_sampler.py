"""Which samples a worker gets, and which count as processed when workers are lost and come."""

import pickle
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.sampled_job import Communicator, Job, play_job
from worker_runtime.elastic import sampler as samplers
from worker_runtime.elastic.sampler import ElasticSampler

EVENTS = (
    *("lost before", "lost between", "left alone between", "lost after", "alone"),
    *("joined", "restored", "unsynced", "padding", "looked"),
)


@pytest.fixture
def communicator(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The runtime as a sampler sees it; a test sets its `engine`."""
    runtime = SimpleNamespace(engine=Communicator.take(0, 1), is_late=False)
    monkeypatch.setattr(samplers, "RUNTIME", runtime)
    return runtime


def deal(runtime: SimpleNamespace, size: int, count: int, **options: object) -> list[list[int]]:
    """The indices that each rank gets."""
    dealt = []
    for rank in range(size):
        runtime.engine = Communicator.take(rank, size)
        sampler = ElasticSampler(range(count), **options)  # type: ignore[arg-type]  # the options are given by the tests
        dealt.append(list(sampler))
        assert len(sampler) == len(dealt[-1]) == sampler.num_samples
        assert sampler.total_size == size * sampler.num_samples
        assert (sampler.num_replicas, sampler.rank) == (size, rank)
    return dealt


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [
        (2, 6, [[0, 2, 4], [1, 3, 5]]),
        (2, 5, [[0, 2, 4], [1, 3, 0]]),
        (5, 2, [[0], [1], [0], [1], [0]]),  # Horovod asserts that there are enough
        (5, 0, [[]] * 5),
    ],
)
def test_samples_are_dealt_by_strides_and_the_first_ones_twice_as_padding(
    communicator: SimpleNamespace, size: int, count: int, expected: list[list[int]]
) -> None:
    assert deal(communicator, size, count, shuffle=False) == expected
    sampler = ElasticSampler(range(count))
    sampler.record_batch(0, 4)
    assert sampler.processed_num == count
    sampler.reset()
    assert list(sampler) == []


def test_the_order_is_that_of_pythons_generator_seeded_with_seed_and_epoch(communicator: SimpleNamespace) -> None:
    order = list(range(8))
    random.Random(7).shuffle(order)  # noqa: S311 - an order
    assert deal(communicator, 2, 8, seed=7) == [order[::2], order[1::2]]
    sampler = ElasticSampler(range(8), seed=5)
    sampler.set_epoch(2)
    assert (sampler.remaining_indices, sampler.epoch) == (order, 2)


def test_processed_samples_are_not_dealt_out_again_after_a_change_of_size(communicator: SimpleNamespace) -> None:
    communicator.engine = Communicator.take(0, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    sampler.record_batch(0, 2)
    state = sampler.state_dict()
    assert state == {"epoch": 0, "processed_num": 4, "ledger": ((2, ((2, ()),)),), "trains": False}
    communicator.engine = Communicator.take(1, 3)
    sampler.reset()
    assert (sampler.remaining_indices, list(sampler)) == ([4, 5, 6, 7, 8, 9], [5, 8])
    assert sampler.state_dict() == state
    other = ElasticSampler(range(10), shuffle=False)
    other.load_state_dict(state)
    assert (list(other), other.processed_num) == ([5, 8], 4)
    other.set_epoch(1)
    assert (other.processed_num, list(other)) == (0, [1, 4, 7, 0])
    assert other.state_dict() == {"epoch": 1, "processed_num": 0, "ledger": (), "trains": False}


def test_a_state_of_horovods_means_the_first_samples(communicator: SimpleNamespace) -> None:
    communicator.engine = Communicator.take(1, 2)
    sampler = ElasticSampler(range(10), shuffle=False)
    sampler.load_state_dict({"epoch": 3, "processed_num": 5})
    assert (sampler.epoch, sampler.processed_num, list(sampler)) == (3, 5, [6, 8, 5])
    sampler.record_batch(0, 1)
    sampler.reset()
    assert (sampler.processed_num, sampler.remaining_indices) == (7, [7, 8, 9])


def play(runtime: SimpleNamespace, rank: int, size: int, count: int, acts: str) -> ElasticSampler:
    """A sampler of that rank, after acts that each are a letter and numbers.

    c: a step is completed, from now on without these ranks. l: their loss is heard of. b: a batch of this size.
    s: its state is asked for.
    """
    communicator = runtime.engine = Communicator.take(rank, size)
    sampler = ElasticSampler(range(count), shuffle=False)
    for act, *numbers in acts.split():
        ranks = tuple(map(int, numbers))
        if act == "c":
            communicator.complete_step(*ranks)
        elif act == "l":
            communicator.original_ranks = tuple(member for member in communicator.original_ranks if member not in ranks)
        elif act == "b":
            sampler.record_batch(0, ranks[0])
        else:
            sampler.state_dict()
    return sampler


# Rank, size, samples and acts; the ledger, how many are processed, and those of the next deal.
STORIES: dict[str, tuple[int, int, int, str, tuple[object, ...], int, list[int]]] = {
    "the last batch is not counted beyond the end": (0, 2, 5, "b2 b2 b2", ((2, ((3, ()),)),), 5, []),
    "nor with steps": (0, 2, 5, "c b2 c b2 c b2", ((2, ((3, ()),)),), 5, []),
    "a batch counts for the ranks of its step": (
        *(1, 3, 12, "c b1 c0 b1 c l2 b1"),  # 8 is processed: rank 2 was lost when the step had been committed
        *(((3, ((1, ()), (2, (0,)))),), 7, [3, 6, 9, 10, 11]),
    ),
    "a batch without a step waits": (0, 2, 20, "b1 c b1 b1 c b1 b1", ((2, ((4, ()),)),), 8, [*range(8, 20)]),
    "and a rank that is lost before the step takes it along": (
        *(0, 2, 20, "b1 c b1 b1 c b1 b1 c1"),
        *(((2, ((4, ()), (1, (1,)))),), 9, [*range(9, 20)]),
    ),
    "also a last rank's": (
        *(0, 2, 20, "b1 c b1 b1 c b1 b1 c1 s b1 l1 b1"),
        *(((2, ((4, ()), (1, (1,)))),), 9, [*range(9, 20)]),
    ),
    "until it steps": (
        *(0, 2, 20, "b1 c b1 b1 c b1 b1 c1 s b1 l1 b1 c"),
        *(((2, ((4, ()), (3, (1,)))),), 11, [9, 11, 13, *range(14, 20)]),
    ),
    "of several steps the last one decides": (0, 3, 9, "c c1 c b1", ((3, ((1, (1,)),)),), 2, [1, *range(3, 9)]),
    "however few are left": (0, 3, 9, "c c12 c b1", ((3, ((1, (1, 2)),)),), 1, [*range(1, 9)]),
    "or who": (2, 3, 9, "c c01 c b1", ((3, ((1, (0, 1)),)),), 1, [0, 1, *range(3, 9)]),
    "where nothing commits a batch counts for the present": (
        *(0, 3, 12, "b2 l1 b1", ((3, ((2, ()), (1, (1,)))),), 8, [7, 9, 10, 11]),
    ),
    "steps between trainings are not a validation's": (
        *(0, 2, 10, "c c c c c b1 b1 b1", ((2, ((3, ()),)),), 6, [6, 7, 8, 9]),
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_batch_counts_for_the_ranks_that_committed_its_step(communicator: SimpleNamespace, name: str) -> None:
    rank, size, count, acts, ledger, processed, left = STORIES[name]
    sampler = play(communicator, rank, size, count, acts)
    state = sampler.state_dict()
    assert (state["epoch"], state["processed_num"], state["ledger"]) == (0, processed, ledger)
    sampler.reset()
    assert (sampler.remaining_indices, sampler.processed_num) == (left, processed)


def test_a_batch_that_waits_counts_as_processed_by_this_worker_alone(communicator: SimpleNamespace) -> None:
    sampler = play(communicator, 0, 2, 8, "c b1 c b1 b1")
    assert (sampler.processed_num, sampler.may_differ) == (6, False)
    sampler.reset()
    assert (sampler.remaining_indices, sampler.processed_num) == ([4, 5, 6, 7], 4)


def test_a_worker_that_has_not_joined_yet_deals_as_the_workers_it_was_started_with(
    communicator: SimpleNamespace,
) -> None:
    communicator.is_late, communicator.assignment = True, SimpleNamespace(rank=2, size=3)
    sampler = ElasticSampler(range(7), shuffle=False)
    assert (len(sampler), list(sampler), sampler.num_replicas, sampler.rank) == (3, [2, 5, 1], 3, 2)
    communicator.is_late, communicator.engine = False, Communicator.take(1, 2)
    sampler.reset()
    assert (list(sampler), sampler.num_replicas, sampler.rank) == ([1, 3, 5, 0], 2, 1)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_batch_that_waits_for_its_first_step_since_a_reset_is_not_processed(
    communicator: SimpleNamespace, is_new: bool
) -> None:
    sampler = play(communicator, 0, 2, 12, "b1 b1 c b1")
    state = sampler.state_dict()
    sampler.reset()
    if is_new:  # another worker's
        sampler = ElasticSampler(range(12), shuffle=False)
        sampler.load_state_dict(state)
    sampler.record_batch(0, 1)
    assert sampler.state_dict() == state
    sampler.set_epoch(1)
    sampler.record_batch(0, 1)
    assert sampler.state_dict()["processed_num"] == 0
    communicator.engine.complete_step()
    assert sampler.state_dict()["processed_num"] == 2


def test_samples_of_a_pass_without_steps_are_processed_at_its_end(communicator: SimpleNamespace) -> None:
    sampler = play(communicator, 0, 2, 12, "b1 b1 c b1")
    sampler.set_epoch(1)
    sampler.record_batch(0, 6)
    sampler.end_pass()
    assert sampler.state_dict()["processed_num"] == 12


def test_ranks_may_differ_where_batches_are_recorded_and_nothing_commits(communicator: SimpleNamespace) -> None:
    assert not play(communicator, 0, 3, 12, "").may_differ
    sampler = play(communicator, 0, 3, 12, "b2 l1 b1")
    assert sampler.may_differ
    sampler.reset()
    assert not sampler.may_differ


@pytest.mark.parametrize(
    ("count", "acts", "is_outdated"),
    [
        (9, "c b1 l1", False),  # what the lost one had up to now is processed
        (9, "c b1 l1 c1 b1", True),
        (9, "c c1 c b1", True),
        (6, "c b2 c1", False),  # the lost one has left nothing: the step is of the next epoch, or of another sampler's
    ],
)
def test_a_deal_is_outdated_once_a_step_was_committed_without_one_of_its_ranks(
    communicator: SimpleNamespace, count: int, acts: str, *, is_outdated: bool
) -> None:
    sampler = play(communicator, 0, 3, count, acts)
    assert sampler.is_outdated is is_outdated
    sampler.reset()
    assert not sampler.is_outdated


def test_a_waiting_batch_belongs_to_its_epoch(communicator: SimpleNamespace) -> None:
    communicator.engine = Communicator.take(0, 2)
    sampler = ElasticSampler(range(8), shuffle=False)
    state = sampler.state_dict()
    sampler.record_batch(0, 1)
    sampler.load_state_dict(state)
    assert (sampler.remaining_indices, sampler.state_dict()) == (list(range(8)), state)
    sampler.record_batch(0, 1)
    sampler.set_epoch(1)
    assert (sampler.remaining_indices, sampler.processed_num) == (list(range(8)), 0)


def test_a_batch_that_is_recorded_before_its_step_waits_for_it(communicator: SimpleNamespace) -> None:
    """Two batches are one step. The state is saved after each batch, and the second step never comes."""
    engine = communicator.engine = Communicator.take(0, 1)
    sampler = ElasticSampler(range(6), shuffle=False)
    counted = []
    for number in range(3):
        sampler.record_batch(number, 1)
        if number == 1:
            engine.complete_step()
        counted.append(sampler.state_dict()["processed_num"])
    assert counted[1:] == [2, 2]
    sampler.reset()
    assert sampler.remaining_indices == [2, 3, 4, 5]


def test_each_batch_of_an_evaluation_counts_without_a_step(communicator: SimpleNamespace) -> None:
    engine = communicator.engine = Communicator.take(0, 1)
    sampler = ElasticSampler(range(4), shuffle=False)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        sampler.record_batch(0, 2)
        assert sampler.state_dict()["processed_num"] == 2
        sampler.record_batch(0, 2)
        engine.complete_step()
        assert sampler.state_dict()["processed_num"] == 4


@pytest.mark.parametrize(("origin", "warned"), [(0, ["3 samples of epoch 0"]), (2, [])])
def test_samples_that_an_epoch_leaves_are_warned_of_once(
    communicator: SimpleNamespace, origin: int, warned: list[str]
) -> None:
    engine = communicator.engine = Communicator.take(origin, 3)
    sampler = ElasticSampler(range(9), shuffle=False)
    engine.complete_step(1)
    sampler.record_batch(0, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sampler.set_epoch(1)
        engine.complete_step()
        sampler.record_batch(0, 9)
        sampler.set_epoch(2)
    assert [str(warning.message).split(" are")[0] for warning in caught] == warned


def test_a_rank_alone_gets_all_samples(communicator: SimpleNamespace) -> None:
    engine = communicator.engine = Communicator.take(1, 2)
    engine.steps.original_ranks = (1,)
    sampler = ElasticSampler(range(4), shuffle=False)
    assert (list(sampler), sampler.rank, sampler.num_replicas) == ([0, 1, 2, 3], 0, 1)
    sampler.record_batch(0, 3)
    assert sampler.state_dict()["ledger"] == ((1, ((3, ()),)),)


@pytest.mark.usefixtures("communicator")
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


def test_each_sample_counts_once_per_epoch_over_losses_growth_and_restores() -> None:
    counts = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        for seed in range(300):
            runtime = SimpleNamespace(engine=None, is_late=False)
            patch.setattr(samplers, "RUNTIME", runtime)
            job = Job(random.Random(seed), runtime)  # noqa: S311 - a history
            try:
                play_job(job, epochs=2)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error
            counts += job.counts
    assert min(counts[event] for event in EVENTS) > 50
