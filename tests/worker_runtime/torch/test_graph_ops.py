"""Collectives in whole graphs of torch.compile, which give what they give without a compiler."""

import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

HAS_COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))
INDUCTOR = pytest.param("inductor", marks=pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler"))
OPS = (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product)


def communicate(x: torch.Tensor) -> torch.Tensor:
    """An unused result with and without a gradient, two equal calls, a name of the program's, and all reductions."""
    hvd.allreduce(x)
    hvd.allgather(x.detach())
    y = hvd.allreduce(x.sin()) * hvd.allreduce(x.sin()) + hvd.allreduce(x, name="own", prescale_factor=2.0)
    for op in OPS:
        y = y + hvd.allreduce(
            x.cos(), op=op, compression=hvd.Compression.bf16 if op == hvd.Sum else hvd.Compression.none
        )
    gathered = hvd.allgather(x * 2)
    return (gathered * gathered).sum() + y.square().sum()


def make_inputs(rank: int) -> list[torch.Tensor]:
    """Of two shapes, so that the second is compiled anew."""
    return [torch.arange(1.0, count + 1).view(-1, 1).sin() + rank for count in (3, 3, 5)]


def run_calls(function: Callable[[torch.Tensor], torch.Tensor], rank: int) -> list[list[float]]:
    """Each result and the gradient."""
    found = []
    for values in make_inputs(rank):
        x = values.requires_grad_()
        result = function(x)
        (gradient,) = torch.autograd.grad(result, x)
        found.append([result.item(), *gradient.flatten().tolist()])
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", INDUCTOR])
def test_a_whole_graph_gives_the_eager_results_and_gradients(ranks: RankPool, backend: str) -> None:
    def body() -> object:
        compiled = torch.compile(communicate, backend=backend, fullgraph=True)
        found = run_calls(compiled, hvd.rank())
        torch.compiler.reset()
        return found, run_calls(communicate, hvd.rank())

    for compiled, eager in ranks.run(body):
        assert [pytest.approx(each, rel=1e-4) for each in eager] == compiled


def test_a_compiled_rank_meets_one_that_is_not(ranks: RankPool) -> None:
    def body() -> object:
        expected = run_calls(communicate, hvd.rank())
        function = torch.compile(communicate, backend="aot_eager", fullgraph=True) if hvd.rank() == 0 else communicate
        found = run_calls(function, hvd.rank())
        torch.compiler.reset()
        return found, expected

    for found, expected in ranks.run(body):
        assert [pytest.approx(each, rel=1e-4) for each in expected] == found


def test_only_one_rank_compiles_anew(ranks: RankPool) -> None:
    """Another shape on one rank; the rows gathered are uneven."""

    def body() -> object:
        counts = [2, 2, 2] if hvd.rank() == 0 else [2, 4, 3]

        def gather(x: torch.Tensor) -> torch.Tensor:
            return hvd.allgather(hvd.allgather(x) * 2).sum()

        compiled = torch.compile(gather, backend="aot_eager", fullgraph=True, dynamic=False)
        found = []
        for function in (gather, compiled):
            inputs = [torch.ones(count, 2, requires_grad=True) for count in counts]
            found.append(
                [
                    (result.item(), torch.autograd.grad(result, x)[0].tolist())
                    for x in inputs
                    for result in [function(x)]
                ]
            )
        torch.compiler.reset()
        return found

    for eager, compiled in ranks.run(body):
        assert eager == compiled


def test_a_graph_outlives_the_number_of_ranks(ranks: RankPool) -> None:
    """What rank 0 has compiled alone it runs among two, without compiling anew."""

    def share(x: torch.Tensor) -> torch.Tensor:
        return hvd.allgather(hvd.allreduce(x, op=hvd.Sum))

    def body() -> object:
        kept: Any = sys.modules  # of the process, which plays a rank of several worlds
        is_first = "kept_graph" not in kept
        if is_first:
            kept["kept_graph"] = torch.compile(share, backend="aot_eager", fullgraph=True)
        with torch.compiler.set_stance("default" if is_first else "fail_on_recompile"):
            return kept["kept_graph"](torch.ones(1)).tolist()

    assert ranks.run(body, size=1) == [[1.0]]
    assert ranks.run(body) == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_batches_are_normalised_in_a_whole_graph(ranks: RankPool, backend: str) -> None:
    def body() -> object:
        found = []
        for is_compiled in (False, True):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), hvd.SyncBatchNorm(4), torch.nn.ReLU())
            run = torch.compile(model, backend=backend, fullgraph=True) if is_compiled else model
            for factor in (1.0, 2.0):
                x = (torch.arange(15.0).view(5, 3).sin() * factor + hvd.rank()).requires_grad_()
                run(x).square().sum().backward()
            model.eval()
            values = [x.grad, *(p.grad for p in model.parameters()), *model[1].buffers(), run(x)]
            found.append([value.detach() for value in values])
        torch.compiler.reset()
        return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*found, strict=True))

    assert ranks.run(body) == [True, True]


def test_a_handle_is_refused_in_a_whole_graph(ranks: RankPool) -> None:
    def body() -> str:
        compiled = torch.compile(lambda x: hvd.synchronize(hvd.allreduce_async(x)), backend="eager", fullgraph=True)
        with pytest.raises(RuntimeError) as caught:
            compiled(torch.ones(2))
        return str(caught.value)

    for text in ranks.run(body):
        assert "leave out fullgraph=True, or call hvd.allreduce, hvd.allgather or hvd.SyncBatchNorm" in text
