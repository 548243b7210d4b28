"""A prepared loader of an elastic job records its batches and follows the epochs, through losses and restarts."""

from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import worker_runtime.torch as hvd
from tests.worker_runtime.sampled_job import Communicator
from worker_runtime.elastic import sampler as samplers
from worker_runtime.torch.loaders import RecordedSampler

pytestmark = pytest.mark.usefixtures("forking")

COUNT = 12


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Of rank 0 of 2."""
    runtime = SimpleNamespace(engine=Communicator.take(0, 2), is_late=False)
    monkeypatch.setattr(samplers, "RUNTIME", runtime)
    return runtime


def make_loader(state: object = None, **arguments: object) -> DataLoader[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOROVOD_ELASTIC", "1")
        return hvd.split_data(DataLoader(torch.arange(COUNT), **{"batch_size": 2, **arguments}), state=state)


def read(loader: DataLoader[Any], runtime: SimpleNamespace) -> list[list[int]]:
    """One pass, a step with each batch."""
    batches = []
    for batch in loader:
        batches.append(batch.tolist())
        runtime.engine.complete_step()
    return batches


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_is_an_epoch_of_the_sampler_and_all_of_it_is_processed(runtime: SimpleNamespace, workers: int) -> None:
    loader = make_loader(shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    by_hand = samplers.ElasticSampler(range(COUNT))
    for epoch in range(3):
        by_hand.set_epoch(epoch)
        assert [*chain(*read(loader, runtime))] == list(by_hand)
        assert (loader.sampler.epoch, loader.sampler.processed_num) == (epoch, COUNT)


def test_a_pass_follows_the_epoch_of_the_state(runtime: SimpleNamespace) -> None:
    state = SimpleNamespace(epoch=0)
    loader = make_loader(state)
    for state.epoch in (0, 1, 1, 5):
        read(loader, runtime)
        assert loader.sampler.epoch == state.epoch


def test_a_second_pass_of_an_epoch_has_all_samples_after_a_loss(runtime: SimpleNamespace) -> None:
    loader = make_loader(SimpleNamespace(epoch=0))
    assert read(loader, runtime) == [[0, 2], [4, 6], [8, 10]]
    runtime.engine.complete_step(1)
    assert [*chain(*read(loader, runtime))] == list(range(COUNT))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_new_worker_without_passes_goes_to_the_epoch_of_the_others(runtime: SimpleNamespace, shuffle: bool) -> None:
    runtime.engine.is_elastic = True
    runtime.engine.find_greatest = lambda epoch, _: max(epoch, 5)  # another one has gone through five
    loader = make_loader(shuffle=shuffle)
    by_hand = samplers.ElasticSampler(range(COUNT), shuffle=shuffle)
    by_hand.set_epoch(5)
    assert [*chain(*read(loader, runtime))] == list(by_hand)
    assert loader.sampler.epoch == (5 if shuffle else 0)


@pytest.mark.parametrize(("used", "expected"), [(0, 0), (1, 4), (2, 8)])
def test_a_batch_counts_from_when_the_state_is_saved_after_its_step(
    runtime: SimpleNamespace, used: int, expected: int
) -> None:
    loader = make_loader()
    batches = iter(loader)
    for _ in range(used):
        next(batches)
        runtime.engine.complete_step()
    assert loader.sampler.state_dict()["processed_num"] == expected
    assert loader.sampler.state_dict()["processed_num"] == expected  # the same batch once


def test_a_batch_in_use_does_not_count_when_the_state_returns_to_a_commit(runtime: SimpleNamespace) -> None:
    loader = make_loader()
    batches = iter(loader)
    next(batches)
    runtime.engine.complete_step()
    saved = loader.sampler.state_dict()
    next(batches)  # of a step that fails
    loader.sampler.load_state_dict(saved)
    loader.sampler.reset()
    batches = iter(loader)
    assert next(batches).tolist() == [4, 6]
    assert loader.sampler.processed_num == 4


def test_training_that_begins_again_continues_in_the_same_epoch(runtime: SimpleNamespace) -> None:
    loader = make_loader()
    batches = iter(loader)
    for _ in range(2):
        next(batches)
        runtime.engine.complete_step()
    assert not loader.sampler.is_outdated  # as a state asks that looks for changes of the job
    runtime.engine = Communicator.take(0, 1)  # of one worker now
    loader.sampler.reset()
    assert (read(loader, runtime), loader.sampler.epoch) == ([[8, 9], [10, 11]], 0)
    assert ([*chain(*read(loader, runtime))], loader.sampler.epoch) == (list(range(COUNT)), 1)


def test_the_first_pass_of_a_loader_is_shared_by_the_workers_at_its_begin(runtime: SimpleNamespace) -> None:
    runtime.engine = Communicator.take(0, 1)  # a worker that has not joined the others yet
    loader = make_loader()
    runtime.engine = Communicator.take(1, 2)
    assert read(loader, runtime) == [[1, 3], [5, 7], [9, 11]]


def test_samples_of_a_lost_worker_come_at_the_end_of_the_pass(runtime: SimpleNamespace) -> None:
    loader, batches = make_loader(), []
    for batch in loader:
        batches.append(batch.tolist())
        runtime.engine.complete_step(*([1] if len(batches) == 2 else []))
    assert batches == [[0, 2], [4, 6], [8, 10], [5, 7], [9, 11]]
    assert (loader.sampler.epoch, loader.sampler.processed_num) == (0, COUNT)
    assert ([*chain(*read(loader, runtime))], loader.sampler.epoch) == ([*range(COUNT)], 1)


def test_the_whole_part_of_a_worker_that_is_lost_in_an_evaluation_comes_at_the_end_of_the_pass(
    runtime: SimpleNamespace,
) -> None:
    runtime.engine.is_elastic = True
    loader, batches = make_loader(), []
    for batch in loader:
        batches.append(batch.tolist())
        if len(batches) == 2:
            runtime.engine.original_ranks = (0,)
    assert batches == [[0, 2], [4, 6], [8, 10], [1, 3], [5, 7], [9, 11]]
    assert [*chain(*loader)] == [*range(COUNT)]


def test_an_evaluation_between_a_step_and_the_next_batch_does_not_change_the_ranks_of_the_step(
    runtime: SimpleNamespace,
) -> None:
    runtime.engine.is_elastic = True
    training, evaluation, batches = make_loader(), make_loader(), []
    for batch in training:
        batches.append(batch.tolist())
        runtime.engine.complete_step()
        if len(batches) == 2:
            runtime.engine.original_ranks = (0,)  # after the step
            assert sum(map(len, evaluation)) == COUNT
    assert batches == [[0, 2], [4, 6], [8, 10], [9, 11]]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [({"batch_size": 4}, [4, 2]), ({"batch_size": None}, [1] * 6), ({"drop_last": True}, [2] * 3)],
)
def test_batches_are_recorded_with_their_samples(
    runtime: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object], rows: list[int]
) -> None:
    loader, before = make_loader(**arguments), []
    record = RecordedSampler.record_batch

    def note(sampler: RecordedSampler, index: int, size: int) -> None:
        record(sampler, index, size)
        before.append(sampler._row)

    monkeypatch.setattr(RecordedSampler, "record_batch", note)
    read(loader, runtime)
    assert [now - then for now, then in zip(before, [0, *before], strict=False)] == rows


def test_a_batch_that_the_program_records_counts_once(runtime: SimpleNamespace) -> None:
    loader = make_loader()
    for step, samples in enumerate(loader):
        runtime.engine.complete_step()
        loader.sampler.record_batch(step, len(samples))
        assert loader.sampler.state_dict()["processed_num"] == 4 * (step + 1)


def test_the_last_batch_of_a_pass_that_is_left_early_counts(runtime: SimpleNamespace) -> None:
    loader = make_loader()
    for _ in loader:
        runtime.engine.complete_step()
        break
    assert loader.sampler.state_dict()["processed_num"] == 4
    read(loader, runtime)
    assert loader.sampler.epoch == 1
