"""Joining, leaving, and a worker's numbers."""

import pytest

from tests.worker_runtime.ranks import RankPool
from worker_runtime import job
from worker_runtime.membership import Assignment
from worker_runtime.process_set import ProcessSet
from worker_runtime.runtime import RUNTIME


def test_init_and_shutdown_may_be_repeated() -> None:
    try:
        job.init()
        job.init()
        assert (job.is_initialized(), job.rank(), job.size()) == (True, 0, 1)
        assert (job.local_rank(), job.local_size(), job.cross_rank(), job.cross_size()) == (0, 1, 0, 1)
        assert job.is_homogeneous()
    finally:
        job.shutdown()
        job.shutdown()
    assert not job.is_initialized()


@pytest.mark.parametrize(
    "ask",
    [
        job.rank,
        job.size,
        job.local_rank,
        job.local_size,
        job.cross_rank,
        job.cross_size,
        job.is_homogeneous,
    ],
)
def test_numbers_before_init_are_an_error(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(ValueError, match=r"^Horovod has not been initialized; use hvd\.init\(\)\.$"):
        ask()


@pytest.mark.parametrize(("local_size", "cross_size", "is_even"), [(2, 2, True), (3, 2, False), (1, 2, False)])
def test_hosts_of_different_sizes_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
    local_size: int,
    cross_size: int,
    is_even: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    job.init()
    try:
        world = RUNTIME._require()
        numbers = Assignment(0, 4, 0, local_size, 0, cross_size)
        monkeypatch.setattr(RUNTIME, "_world", type(world)(numbers, world.executor))
        assert job.is_homogeneous() is is_even
        monkeypatch.undo()
    finally:
        job.shutdown()


def test_all_ranks_may_be_given_in_any_order(ranks: RankPool) -> None:
    def body() -> object:
        job.shutdown()
        job.init(comm=[1, 0])
        return job.size()

    assert ranks.run(body) == [2, 2]


def test_some_ranks_are_refused_and_the_way_is_told(ranks: RankPool) -> None:
    def body() -> object:
        job.shutdown()
        with pytest.raises(ValueError, match=r"^Horovod initialization failed: comm=\[0\] .* make a process set"):
            job.init(comm=[0])
        return job.is_initialized()

    assert ranks.run(body) == [False, False]


@pytest.mark.parametrize("comm", [..., ["a"], [0.5], 3], ids=str)
def test_what_is_no_list_of_ranks_is_refused_before_the_job_is_joined(comm: object) -> None:
    with pytest.raises(ValueError, match="give ranks as integers"):
        job.init(comm=comm)  # type: ignore[arg-type]  # that is the test
    assert not job.is_initialized()


def test_process_sets_are_registered_with_init(ranks: RankPool) -> None:
    def body() -> object:
        job.shutdown()
        first, second = ProcessSet([1]), ProcessSet((1, 2))
        job.init(process_sets=[first, second])
        job.init(process_sets=[ProcessSet([0])])  # nothing, when initialised
        return first.process_set_id, second.process_set_id, second.rank() if job.rank() else None

    assert ranks.run(body, size=3) == [(1, 2, None), (1, 2, 0), (1, 2, 1)]


def test_a_set_that_is_given_twice_is_named_by_its_place_and_the_worker_has_joined(ranks: RankPool) -> None:
    def body() -> object:
        job.shutdown()
        first = ProcessSet([0])
        with pytest.raises(ValueError, match=r"process_sets\[1\]: Attempted to add a duplicate process set"):
            job.init(process_sets=[first, ProcessSet([0, 1])])
        return job.is_initialized(), first.process_set_id

    assert ranks.run(body) == [(True, 1)] * 2


@pytest.mark.parametrize("word", ["dynamic", "Dynamic", "DYNAMIC"])
def test_dynamic_sets_are_always_possible(word: str) -> None:
    try:
        job.init(process_sets=word)
    finally:
        job.shutdown()


@pytest.mark.parametrize(("sets", "message"), [("static", "'static'"), ([[0, 1]], r"process_sets\[0\] is \[0, 1\]")])
def test_what_are_no_process_sets_is_refused_before_the_job_is_joined(sets: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job.init(process_sets=sets)  # type: ignore[arg-type]  # that is the test
    assert not job.is_initialized()
