"""Putting collectives into the graph that torch.compile traces.

Only then the operations are imported: to register them with torch takes 12 ms, and few programs need them.
"""

import torch

from worker_runtime.api.process_set import ProcessSet
from worker_runtime.torch.autograd.sync_batch_norms import Statistics


def run_in_graph(
    kind: str,
    tensor: torch.Tensor,
    name: str | None,
    process_set: ProcessSet,
    how: tuple[int, float, float] = (0, 1.0, 1.0),
) -> torch.Tensor:
    """Put a collective into the graph that is being traced; differentiable.

    Args:
        kind: what programs call it.
        tensor: its input.
        name: the program's own for it.
        process_set: in which it runs.
        how: a reduction or the root, and factors; what the kind has of these.

    Returns:
        The result; how many rows an allgather or a reducescatter gives is known when the graph runs.
    """
    from worker_runtime.torch.graph_ops import TOKEN  # noqa: PLC0415 - see above

    op, *factors = how
    given = int(op), *map(float, factors)
    result: torch.Tensor = torch.ops.hvdrun.collective(TOKEN, tensor, kind, name, process_set.key, *given)[0]
    return result


def normalize_in_graph(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, process_set: ProcessSet
) -> tuple[torch.Tensor, Statistics]:
    """`SyncNormalize` with the statistics of all ranks; puts both into the graph that is being traced."""
    from worker_runtime.torch.graph_ops import TOKEN  # noqa: PLC0415 - see above

    result, *statistics = torch.ops.hvdrun.sync_batch_norm(TOKEN, x, weight, bias, eps, process_set.key)
    return result, Statistics(*statistics)
