"""Joining, leaving, a worker's numbers, and what an installation says of itself."""

import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api import basics
from worker_runtime.api.basics import HorovodBasics, start_timeline, stop_timeline
from worker_runtime.api.calls import begin_call, make_allreduce
from worker_runtime.api.failed_calls import await_all
from worker_runtime.api.process_set import ProcessSet, add_process_set
from worker_runtime.collectives.combination import AVERAGE
from worker_runtime.coordination.link import Link
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import Assignment, read_is_elastic, read_numbers


def test_init_and_shutdown_may_be_repeated() -> None:
    try:
        basics.init()
        basics.init()
        assert (basics.is_initialized(), basics.rank(), basics.size()) == (True, 0, 1)
        assert (basics.local_rank(), basics.local_size(), basics.cross_rank(), basics.cross_size()) == (0, 1, 0, 1)
        assert basics.is_homogeneous()
    finally:
        basics.shutdown()
        basics.shutdown()
    assert not basics.is_initialized()


NUMBERS = (
    *(basics.rank, basics.size, basics.local_rank, basics.local_size),
    *(basics.cross_rank, basics.cross_size, basics.is_homogeneous),
)
BEFORE_INIT: dict[str, Callable[[], object]] = {
    **{number.__name__: number for number in NUMBERS},
    "begin_call": lambda: begin_call("allreduce", "x"),
    "allreduce": lambda: hvd.allreduce(torch.ones(1)),
    "start_timeline": lambda: start_timeline("t.json"),
    "stop_timeline": stop_timeline,
    "mpi_threads_supported": basics.mpi_threads_supported,
    "included": ProcessSet([0]).included,
    "add_process_set": lambda: add_process_set([0]),
    "barrier": hvd.barrier,
    "barrier of a set": lambda: hvd.barrier(ProcessSet([0])),
    "join": hvd.join,
}


@pytest.mark.parametrize("call", BEFORE_INIT.values(), ids=BEFORE_INIT)
def test_a_call_before_init_raises(call: Callable[[], object]) -> None:
    with pytest.raises(
        hvd.HorovodInternalError, match=r"^Horovod has not been initialized; use hvd\.init\(\)\.$"
    ) as it:
        call()
    assert isinstance(it.value, ValueError)


@pytest.mark.parametrize(("local_size", "cross_size", "is_even"), [(2, 2, True), (3, 2, False), (1, 2, False)])
def test_hosts_of_different_sizes_are_noticed(
    monkeypatch: pytest.MonkeyPatch, *, local_size: int, cross_size: int, is_even: bool
) -> None:
    basics.init()
    try:
        world = RUNTIME.world
        assert world is not None
        numbers = Assignment(0, 4, 0, local_size, 0, cross_size)
        monkeypatch.setattr(RUNTIME, "world", type(world)(numbers, world.engine))
        assert basics.is_homogeneous() is is_even
        monkeypatch.undo()
    finally:
        basics.shutdown()


def test_some_ranks_are_refused_and_all_may_be_given_in_any_order(ranks: RankPool) -> None:
    def body() -> object:
        basics.shutdown()
        with pytest.raises(ValueError, match=r"^Horovod initialization failed: comm=\[0\] .* make a process set"):
            basics.init(comm=[0])
        assert not basics.is_initialized()
        basics.init(comm=[1, 0])
        with pytest.raises(ValueError, match=r"comm=\[0\] is not the whole job"):
            basics.init(comm=[0])
        return basics.size()

    assert ranks.run(body) == [2, 2]


def test_no_rank_enters_the_next_world_before_all_have_entered_the_former_one(ranks: RankPool) -> None:
    def body() -> object:
        connect = Link.connect

        def connect_late(*arguments: Any) -> Link:
            time.sleep(0.5)
            return connect(*arguments)

        is_late = basics.rank() == 1
        basics.shutdown()
        with pytest.MonkeyPatch.context() as patch:
            if is_late:
                patch.setattr(Link, "connect", connect_late)
            basics.init()
        basics.shutdown()
        basics.init()
        return basics.size()

    assert ranks.run(body) == [2, 2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(({"comm": comm}, "give ranks as integers") for comm in (..., ["a"], [0.5], 3)),
        ({"process_sets": "static"}, "'static'"),
        ({"process_sets": [[0, 1]]}, r"process_sets\[0\] is \[0, 1\]"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_the_job_is_joined(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        basics.init(**wrong)
    assert not basics.is_initialized()


def test_process_sets_are_registered_with_init(ranks: RankPool) -> None:
    def body() -> object:
        basics.shutdown()
        first, second = ProcessSet([1]), ProcessSet((1, 2))
        basics.init(process_sets=[first, second])
        again = ProcessSet([2, 1])
        basics.init(process_sets=[again, first])  # when initialised, the ids of the same ranks
        assert (again.process_set_id, first.process_set_id) == (2, 1)
        with pytest.raises(ValueError, match=r"no process set has the ranks \[0\], as process_sets\[0\] has; give it"):
            basics.init(process_sets=[ProcessSet([0])])
        sets = HorovodBasics()._get_process_set_ids_and_ranks()
        return first.process_set_id, second.process_set_id, second.rank() if basics.rank() else None, sets

    sets = {0: [0, 1, 2], 1: [1], 2: [1, 2]}
    assert ranks.run(body, size=3) == [(1, 2, None, sets), (1, 2, 0, sets), (1, 2, 1, sets)]


def test_a_set_that_is_given_twice_is_named_by_its_place_and_the_worker_has_joined(ranks: RankPool) -> None:
    def body() -> object:
        basics.shutdown()
        first = ProcessSet([0])
        with pytest.raises(ValueError, match=r"process_sets\[1\]: Attempted to add a duplicate process set"):
            basics.init(process_sets=[first, ProcessSet([0, 1])])
        return basics.is_initialized(), first.process_set_id

    assert ranks.run(body) == [(True, 1)] * 2


@pytest.mark.parametrize("word", ["dynamic", "Dynamic", "DYNAMIC"])
def test_dynamic_sets_are_always_possible(word: str) -> None:
    try:
        basics.init(process_sets=word)
    finally:
        basics.shutdown()


def test_horovods_object_has_the_functions_as_methods() -> None:
    functions = {name: value for name, value in vars(basics).items() if inspect.isfunction(value)}
    own = [name for name, value in functions.items() if value.__module__ == basics.__name__ and name[0] != "_"]
    assert len(own) > 20
    assert all(getattr(HorovodBasics(), name) is functions[name] for name in own if name != "stopping")


def test_gloo_is_built_mpi_is_not_and_the_accelerators_are_those_of_torch() -> None:
    assert (basics.gloo_built(), basics.gloo_enabled()) == (True, True)
    assert (basics.mpi_built(), basics.mpi_enabled()) == (False, False)
    assert (basics.ddl_built(), basics.ccl_built()) == (False, False)
    assert basics.cuda_built() == (torch.version.cuda is not None)
    assert basics.rocm_built() == (torch.version.hip is not None)


@pytest.mark.parametrize(
    ("version", "expected"), [(None, 0), ((2, 18, 5), 21805), ((2, 21), 22100), ((2, 26, 2, "x"), 22602)]
)
def test_the_version_of_nccl_is_one_number(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int | str, ...] | None, expected: int
) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: version is not None)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: version)
    assert basics.nccl_built() == expected


def test_mpi_threads_are_not_supported(ranks: RankPool) -> None:
    def body() -> object:
        with pytest.raises(ValueError, match="MPI is not enabled"):
            basics.mpi_threads_supported()

    ranks.run(body, size=1)


def test_each_number_is_read_from_its_own_variable() -> None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    variables = {f"HOROVOD_{name}": str(value) for name, value in zip(names, (5, 6, 1, 2, 3, 4), strict=True)}
    assert read_numbers(variables) == Assignment(rank=5, size=6, local_rank=1, local_size=2, cross_rank=3, cross_size=4)


def test_a_job_is_elastic_only_where_the_variable_of_its_agent_is_1() -> None:
    assert [read_is_elastic({"HOROVOD_ELASTIC": value}) for value in "10"] == [True, False]
    assert not read_is_elastic({})


def test_all_operations_are_awaited_also_after_one_has_failed(ranks: RankPool) -> None:
    def body() -> object:
        handles = []
        for name in ("a", "b", "c"):
            call = begin_call("allreduce", name)
            rows = call.among.rank + 1 if name == "b" else 1  # on which the ranks do not agree
            handles.append(call.engine.submit(make_allreduce(call, [torch.ones(rows)], AVERAGE)))
        with pytest.raises(hvd.HorovodInternalError, match="allreduce"):
            await_all(call.engine, handles)
        return handles[0].is_done(), call.engine.wait(handles[2])[0].tolist()

    assert ranks.run(body) == [(True, [1.0])] * 2
