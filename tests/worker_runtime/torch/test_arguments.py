"""Whatever nonsense a program passes is one sentence at the call, and the next collective works on all ranks."""

import numpy as np
import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from tests.worker_runtime.torch.nonsense import list_calls

REFUSALS = (ValueError, TypeError, NotImplementedError)  # AttributeError only with ValueError, as Horovod has it once


def test_nonsense_is_one_sentence_at_the_call_and_the_next_collective_works(ranks: RankPool) -> None:
    def body() -> object:
        calls, wrong = list_calls(), []
        for number, (title, call) in enumerate(calls):
            try:
                wrong.append(f"{title}: returned {call()}")
            except REFUSALS as error:
                text = str(error)
                if not text or "\n" in text or "object has no attribute" in text:
                    wrong.append(f"{title}: {type(error).__name__}: {text}")
            except Exception as error:  # noqa: BLE001 - the test is to see it
                wrong.append(f"{title}: {type(error).__name__}: {error}")
            total = hvd.allreduce(torch.ones(2), op=hvd.Sum, name=f"after {number}").tolist()
            assert total == [2.0, 2.0], title
        return len(calls), wrong

    for count, wrong in ranks.run(body):
        assert wrong == []
        assert count > 500


def test_nonsense_on_one_rank_leaves_the_others_alone(ranks: RankPool) -> None:
    def body() -> object:
        if hvd.rank() == 1:
            for _, call in list_calls():
                with pytest.raises(REFUSALS):
                    call()
        return hvd.allreduce(torch.ones(2), op=hvd.Sum, name="after").tolist()

    assert ranks.run(body) == [[2.0, 2.0]] * 2


def test_numbers_of_other_libraries_are_numbers(ranks: RankPool) -> None:
    def body() -> object:
        one = torch.ones(2)
        return [
            hvd.allreduce(one, op=hvd.Sum, prescale_factor=np.float32(0.5)).tolist(),
            hvd.allreduce(one, op=hvd.Sum, postscale_factor=torch.tensor(0.5)).tolist(),
            hvd.reducescatter(one, op=hvd.Sum, prescale_factor=np.int64(2)).tolist(),
            hvd.broadcast(one * hvd.rank(), np.int32(1)).tolist(),
            hvd.broadcast(one * hvd.rank(), torch.tensor(1)).tolist(),
            hvd.broadcast_object(hvd.rank(), np.int64(1)),
            hvd.alltoall(one, splits=[np.int32(1), torch.tensor(1)])[0].tolist(),
        ]

    assert ranks.run(body) == [[[1.0, 1.0], [1.0, 1.0], [4.0], [1.0, 1.0], [1.0, 1.0], 1, [1.0, 1.0]]] * 2


def test_a_tensor_that_only_stands_for_others_is_refused_before_autograd_sees_it() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(x).sum()

    hvd.init()
    try:
        with pytest.raises(ValueError, match=r"allreduce \'noname\.1\': collectives cannot run inside vmap, grad, jvp"):
            torch.func.grad(call)(torch.ones(2))
    finally:
        hvd.shutdown()
