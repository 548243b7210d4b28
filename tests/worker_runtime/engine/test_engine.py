"""Order, failures and endings of operations that were begun asynchronously."""

import os
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import worker_runtime.torch as hvd
from tests.house.sources import read_sources
from tests.worker_runtime.ranks import RankPool
from worker_runtime.api import functions
from worker_runtime.collectives.agreements import Barrier
from worker_runtime.collectives.allreduce import Allreduce
from worker_runtime.collectives.combination import SUM
from worker_runtime.coordination.operation import Handle
from worker_runtime.coordination.ordering.requests import GLOBAL_SET
from worker_runtime.engine.engine import Engine

LARGE = 100_000  # elements: more than travel inside a request


def begin(name: str, value: float = 1.0, count: int = 2) -> int:
    return hvd.allreduce_async(torch.full((count,), float(value)), name=name)


def test_a_name_in_flight_is_refused_but_not_for_another_kind_or_set(ranks: RankPool) -> None:
    def body() -> object:
        some = hvd.add_process_set([0])
        x = torch.ones(2)
        begun = [hvd.allreduce_async(x, name="x"), hvd.allgather_async(x, name="x")]
        if hvd.rank() == 0:
            begun.append(hvd.allreduce_async(x, name="x", process_set=some))
            with pytest.raises(ValueError, match="a tensor with the same name is currently being processed"):
                hvd.allreduce_async(x, name="x")
        hvd.barrier()
        for handle in begun:
            hvd.synchronize(handle)
        return hvd.allreduce(x, name="x").tolist()

    assert ranks.run(body) == [[1.0, 1.0]] * 2


def test_a_rank_with_a_pending_operation_can_leave_and_the_others_learn_it(ranks: RankPool, tmp_path: Path) -> None:
    """The other rank, alive and busy until this one has left, has not joined it: leaving must not wait for it."""
    gone = tmp_path / "rank-0-has-gone"
    os.mkfifo(gone)

    def body() -> None:
        hvd.barrier()
        if hvd.rank() == 1:
            gone.read_text()
            with pytest.raises(hvd.HorovodInternalError, match="shut down on rank 0, and allreduce 'late' needs it"):
                hvd.synchronize(begin("late"))
            return
        handle = begin("unanswered")
        hvd.shutdown()
        gone.write_text("")
        with pytest.raises(ValueError, match="has not been initialized"):
            hvd.synchronize(handle)

    ranks.run(body)


def test_shutdown_and_init_begin_a_new_table(ranks: RankPool) -> None:
    def body() -> object:
        first = begin("a"), begin("b")
        kept = len(functions._handle_map), 2 in functions._handle_map, list(functions._handle_map)
        hvd.shutdown()
        with pytest.raises(ValueError, match="has not been initialized"):
            hvd.synchronize(first[0])
        gone = len(functions._handle_map), 2 in functions._handle_map, list(functions._handle_map)
        hvd.init()
        with pytest.raises(ValueError, match="Handle 2 was not created or has been cleared"):
            hvd.poll(2)
        return first, kept, gone, begin("c")

    assert ranks.run(body, size=1) == [((1, 2), (2, True, [1, 2]), (0, False, []), 1)]


def test_an_engine_of_one_rank_completes_operations_on_submission_and_refuses_them_when_closed() -> None:
    engine = Engine()
    members = engine.find_members(GLOBAL_SET, "x")
    operation = Allreduce([torch.ones(1)], SUM, members, "allreduce.x")
    assert engine.submit(operation).is_done()
    assert engine.run(operation)[0].tolist() == [1.0]
    engine.close()
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        engine.submit(Barrier(members, "barrier.x"))


def test_after_a_failure_an_operation_counts_as_done_though_gloo_never_completes_its_work() -> None:
    """A wait raises then: a program that polls before it waits would poll for ever."""
    engine = Engine()
    handle = Handle(Barrier(engine.find_members(GLOBAL_SET, "x"), "barrier.x"))
    handle.begin(Mock(), (Mock(**{"is_completed.return_value": False}),), memoryview(b""))
    assert not engine.poll(handle)
    engine.current.note_failure("rank 1 was lost")
    engine.current.failed_at = 0.0
    assert engine.poll(handle)


def test_a_handle_changes_in_one_file_only() -> None:
    change = re.compile(r"\bhandle\.(?:(?:begin|complete|succeed|finish|reset|fail)\(|\w+ = )")
    changing = {str(path) for path, source in read_sources("worker_runtime") if change.search(source)}
    assert changing == {"worker_runtime/engine/in_flight.py"}
