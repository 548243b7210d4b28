"""Horovod's object of functions."""

from tests.worker_runtime.ranks import RankPool
from worker_runtime import capabilities, job
from worker_runtime.basics import HorovodBasics
from worker_runtime.process_set import add_process_set


def test_its_methods_are_the_functions() -> None:
    basics = HorovodBasics()
    for room in (job, capabilities):
        names = [name for name, value in vars(room).items() if getattr(value, "__module__", "") == room.__name__]
        public = [name for name in names if not name.startswith("_")]
        assert public
        assert all(getattr(basics, name) is getattr(room, name) for name in public)


def test_it_lists_the_process_sets(ranks: RankPool) -> None:
    def body() -> object:
        add_process_set([1])
        return HorovodBasics()._get_process_set_ids_and_ranks()

    assert ranks.run(body) == [{0: [0, 1], 1: [1]}] * 2
