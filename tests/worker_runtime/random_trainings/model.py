"""The model of a random training: its parameters, its data, and the loss of one rank."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.widening import Widen

SHAPES = {"weight": (4, 3), "offset": (4,), "out": (4,), "skip": (3,), "bias": ()}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # of a norm
ROWS = 3
_COMPILED_MOST = 64  # by then a test has drawn all forms of the model: torch would continue without compiling
_EPS = 1e-5

Normalize = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def make_parameter(values: torch.Tensor, *, is_widened: bool) -> torch.nn.Parameter:
    """A parameter in float64; a widened one is in bfloat16, and its gradients are in float64."""
    parameter = torch.nn.Parameter(values.detach().clone().to(torch.bfloat16 if is_widened else torch.float64))
    if is_widened:
        parameter.grad_dtype = torch.float64
    return parameter


def make_model(widened: Collection[str]) -> dict[str, torch.nn.Parameter]:
    """The same on each rank."""
    return {
        name: make_parameter(draw_tensor(7, place, shape), is_widened=name in widened)
        for place, (name, shape) in enumerate(SHAPES.items())
    }


def draw_tensor(batch: int, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Data of one rank."""
    chance = torch.Generator().manual_seed(batch * 100 + rank)
    return torch.randn(shape, generator=chance, dtype=torch.float64)


def draw_rows(batch: int, rank: int) -> torch.Tensor:
    """What one rank gives its model."""
    return draw_tensor(batch, rank, (ROWS, SHAPES["weight"][1]))


def compute(
    model: Mapping[str, torch.Tensor],
    rows: torch.Tensor,
    uses: frozenset[str],
    normalize: Normalize | None = None,
) -> torch.Tensor:
    """The loss of one rank. A norm has the scale `out` and the shift `offset`."""
    model = {
        name: Widen.apply(each, torch.float64) if each.dtype is torch.bfloat16 else each for name, each in model.items()
    }
    guess = torch.zeros_like(rows[:, 0])
    if "hidden" in uses:
        inner = rows @ model["weight"].T
        inner = inner + model["offset"] if normalize is None else normalize(inner, model["out"], model["offset"])
        guess = guess + torch.tanh(inner) @ model["out"]
    if "skip" in uses:
        guess = guess + rows @ model["skip"]
    if "bias" in uses:
        guess = guess + model["bias"]
    return (guess - rows.sum(1)).square().mean()


@functools.cache
def make_norm(dtype: str) -> Normalize:
    """A norm of all ranks' batches in a dtype, whose statistics and parameters are in float32 at least."""
    norm = hvd.SyncBatchNorm(SHAPES["out"][0], affine=False)

    def normalize(inner: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        norm.weight, norm.bias = scale, shift
        return norm(inner.to(DTYPES[dtype])).double()

    return normalize


def normalize_whole(models: Sequence[Mapping[str, torch.Tensor]], batch: int, dtype: str) -> Normalize:
    """What `make_norm` does, by the definition: the batches of all ranks, with the model of each, have one mean."""
    inner = [draw_rows(batch, rank) @ model["weight"].T for rank, model in enumerate(models)]
    whole = torch.cat(inner).to(DTYPES[dtype]).double()
    mean, variance = whole.mean(0), whole.var(0, unbiased=False)

    def normalize(inner: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        centred = inner.to(DTYPES[dtype]).double() - mean
        return (centred * torch.rsqrt(variance + _EPS) * scale + shift).to(DTYPES[dtype]).double()

    return normalize


@functools.cache
def compile_loss(way: str) -> Callable[..., torch.Tensor]:
    """`compute`, compiled; once for each process."""
    torch._dynamo.config.recompile_limit = _COMPILED_MOST
    return torch.compile(compute, backend=way, dynamic=False)
