"""Collectives in whole graphs of torch.compile. Where one rank alone is compiled, both agree on every operation."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool

pytestmark = pytest.mark.devices(compiles=True)

COMPILING_SECONDS = 300.0  # inductor starts the C++ compiler many times, on all ranks, on a busy machine
COMPILER = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
BACKENDS = [
    "aot_eager",
    pytest.param("eager", marks=pytest.mark.nightly),
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.nightly,
            pytest.mark.timeout(COMPILING_SECONDS + 60),
            pytest.mark.skipif(not COMPILER, reason="there is no C++ compiler"),
        ],
    ),
]
OPS = (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)


class Net(torch.nn.Module):
    """Whatever can be a part of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.norm, self.average_norm = hvd.SyncBatchNorm(3), hvd.SyncBatchNorm(3, momentum=None, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Unused results with and without a gradient, equal calls, the program's own name, all reductions, layers."""
        x = self.average_norm(self.norm(self.linear(x)).relu())
        hvd.allreduce(x)
        hvd.allgather(x.detach())
        y = hvd.allreduce(x.sin()) * hvd.allreduce(x.sin()) + hvd.allreduce(x, name="own", prescale_factor=2.0)
        for op in OPS:
            y = y + hvd.allreduce(x.cos(), op=op)
        y = y + hvd.allreduce(x.cos(), compression=hvd.Compression.bf16) + hvd.broadcast(x, 1)
        return hvd.allgather(x * 2).square().sum() + hvd.reducescatter(y, op=hvd.Sum).square().sum()


def run_steps(compiler: Callable[[Net], Callable[[torch.Tensor], torch.Tensor]]) -> list[torch.Tensor]:
    """Results, gradients and running statistics of steps with inputs of two shapes, and of an evaluation."""
    torch.manual_seed(0)
    net = Net().double()
    run = compiler(net)
    found = []
    for rows in (4, 4, 5):
        x = (torch.arange(2 * rows, dtype=torch.float64).view(rows, 2).sin() + hvd.rank()).requires_grad_()
        result = run(x)
        found += [result, *torch.autograd.grad(result, [x, *net.parameters()])]
    net.eval()
    return [each.detach().clone() for each in [*found, *net.buffers(), run(x)]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_whole_graph_gives_the_eager_results_and_gradients(ranks: RankPool, backend: str, tmp_path: Path) -> None:
    def body() -> bool:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
        expected = run_steps(lambda net: net)
        compiled = run_steps(
            lambda net: torch.compile(net, backend=backend, fullgraph=True) if hvd.rank() == 0 else net
        )
        torch.compiler.reset()
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        return all(torch.allclose(a, b) for a, b in zip(expected, compiled, strict=True))

    assert ranks.run(body, limit_seconds=COMPILING_SECONDS) == [True, True]


DTYPES = {  # of the module, and of what it is given
    "float32": (torch.float32, torch.float32),
    "autocast": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "bfloat16 given": (torch.float32, torch.bfloat16),
    "float16 given": (torch.float32, torch.float16),
    "bfloat16 module": (torch.bfloat16, torch.float32),
}


def normalize(name: str, compiler: Callable[[torch.nn.Module], torch.nn.Module]) -> list[torch.Tensor]:
    """The result of a norm, under autocast after another layer; the gradients and the statistics."""
    torch.manual_seed(0)
    is_autocast = name == "autocast"
    module, given = DTYPES[name]
    net = torch.nn.Sequential(torch.nn.Linear(2, 2) if is_autocast else torch.nn.Identity(), hvd.SyncBatchNorm(2))
    run = compiler(net.to(module))
    x = (torch.arange(10.0).view(5, 2).sin() * (1 + hvd.rank())).to(given).requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=is_autocast):
        result = run(x)
    gradients = torch.autograd.grad(result.float().square().cos().sum(), [x, *net.parameters()])
    return [each.detach() for each in (result, *gradients, *net.buffers())]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_norm_in_a_graph_has_the_eager_dtypes_results_and_gradients(
    ranks: RankPool, backend: str, tmp_path: Path
) -> None:
    def body() -> list[str]:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
        found = []
        for name in DTYPES:
            eager = normalize(name, lambda net: net)
            compiled = normalize(
                name, lambda net: torch.compile(net, backend=backend, fullgraph=True) if hvd.rank() == 0 else net
            )
            found += [
                f"{name}, {place}: {ours}, not {theirs}"
                for place, (ours, theirs) in enumerate(zip(compiled, eager, strict=True))
                if ours.dtype != theirs.dtype or not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-3)
            ]
            torch.compiler.reset()
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        return found

    assert ranks.run(body, limit_seconds=COMPILING_SECONDS) == [[], []]


def test_only_one_rank_compiles_anew(ranks: RankPool) -> None:
    """Another shape on one rank; the rows gathered are uneven."""

    def body() -> list[list[list[float]]]:
        def gather(x: torch.Tensor) -> torch.Tensor:
            return hvd.allgather(hvd.allgather(x) * 2).square().sum()

        found = []
        for run in (gather, torch.compile(gather, backend="aot_eager", fullgraph=True, dynamic=False)):
            inputs = [torch.ones(rows, requires_grad=True) for rows in ([2, 2, 2] if hvd.rank() == 0 else [2, 0, 3])]
            found.append([torch.autograd.grad(run(x), x)[0].tolist() for x in inputs])
        torch.compiler.reset()
        return found

    for eager, compiled in ranks.run(body, limit_seconds=COMPILING_SECONDS):
        assert eager == compiled


def test_a_graph_outlives_the_number_of_ranks(ranks: RankPool) -> None:
    """What rank 0 has compiled alone it runs among two, without compiling anew; `average` is silent in a graph."""

    def body() -> list[float]:
        kept: Any = sys.modules  # of the process, which plays a rank of several worlds
        run = kept.pop("kept_graph", None)
        with torch.compiler.set_stance("fail_on_recompile" if run else "default"):
            run = run or torch.compile(
                lambda x: hvd.allgather(hvd.allreduce(x, average=False)), backend="aot_eager", fullgraph=True
            )
            if hvd.size() == 1:
                kept["kept_graph"] = run
            return run(torch.ones(1)).tolist()

    assert ranks.run(body, size=1) == [[1.0]]
    assert ranks.run(body) == [[2.0, 2.0]] * 2


def test_a_handle_is_refused_in_a_whole_graph(ranks: RankPool) -> None:
    def body() -> str:
        compiled = torch.compile(lambda x: hvd.synchronize(hvd.allreduce_async(x)), backend="eager", fullgraph=True)
        with pytest.raises(RuntimeError) as caught:
            compiled(torch.ones(2))
        return str(caught.value)

    for text in ranks.run(body):
        assert (
            "remove fullgraph=True, or call hvd.allreduce, hvd.allgather, hvd.broadcast, hvd.reducescatter or" in text
        )
