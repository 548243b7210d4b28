"""Where a call runs, and under what name."""

import pytest
import torch

from tests.worker_runtime.ranks import RankPool
from worker_runtime.calls import await_all, begin_call, make_allreduce
from worker_runtime.collectives import AVERAGE, Adasum, Allreduce, Combination
from worker_runtime.core.questions import Reduction
from worker_runtime.errors import HorovodInternalError
from worker_runtime.process_set import add_process_set


def test_names_are_the_programs_or_counted_for_each_kind_and_set(ranks: RankPool) -> None:
    def body() -> object:
        some = add_process_set([0, 1])
        if begin_call("rank", "own").among.rank == 2:
            return None
        unnamed = [begin_call("allreduce", None).name for _ in range(2)]
        others = [begin_call("broadcast", None).name, begin_call("allreduce", None, some).name]
        named = begin_call("allreduce", "loss", some)
        return unnamed, others, named.name, named.among.ranks, named.derive("backward").name

    found = ranks.run(body, size=3)[:2]
    assert (
        found
        == [
            (
                ["allreduce.noname.1", "allreduce.noname.2"],
                ["broadcast.noname.1", "allreduce.noname.1"],
                "allreduce.loss",
                (0, 1),
                "allreduce.loss.backward",
            )
        ]
        * 2
    )


def test_calls_before_init_are_an_error() -> None:
    with pytest.raises(HorovodInternalError, match="has not been initialized"):
        begin_call("allreduce", "x")


def test_adasum_is_an_operation_of_its_own(ranks: RankPool) -> None:
    def body() -> object:
        call = begin_call("allreduce", "x")
        kinds = [type(make_allreduce(call, [torch.ones(1)], how)) for how in (AVERAGE, Combination(Reduction.ADASUM))]
        return kinds == [Allreduce, Adasum]

    assert ranks.run(body, size=1) == [True]


def test_all_operations_are_awaited_also_after_one_has_failed(ranks: RankPool) -> None:
    def body() -> object:
        handles = []
        for name in ("a", "b", "c"):
            call = begin_call("allreduce", name)
            rows = call.among.rank + 1 if name == "b" else 1  # on which the ranks do not agree
            handles.append(call.executor.submit(make_allreduce(call, [torch.ones(rows)], AVERAGE)))
        with pytest.raises(HorovodInternalError, match="allreduce"):
            await_all(handles)
        return handles[0].is_done(), handles[2].wait()[0].tolist()

    assert ranks.run(body) == [(True, [1.0])] * 2
