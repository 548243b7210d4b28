"""Sparse allreduce under Horovod's name and signature."""

from collections.abc import Callable
from functools import partial

import torch

from worker_runtime.api.calls import begin_call
from worker_runtime.api.giving_up import gives_up
from worker_runtime.api.process_set import ProcessSet, global_process_set
from worker_runtime.api.reductions import choose_reduction
from worker_runtime.collectives import SparseAllreduce
from worker_runtime.collectives.untraced import untraced
from worker_runtime.torch.arguments import check_tensor


@untraced
@gives_up("sparse_allreduce")
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int | None, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to add up, or to average, sparse tensors over the ranks of a set; not differentiable.

    Args:
        tensor: sparse COO, coalesced or not, also without elements, of the same shape and dtype on all ranks; left
            alone, also by the caller until the result is there.
        name: by which the ranks' calls find each other and messages call it; None counts the calls.
        op: Sum or Average; other ops are an error (Horovod does not look).
        process_set: the ranks that take part.

    Returns:
        What waits, when it is called, and gives the result: sparse, of the same shape, with the elements of all ranks
        one after the other. It is not coalesced. The average divides by the size of the set.

    Raises:
        ValueError: a wrong argument, or a name that is in flight; nothing was sent.
        HorovodInternalError: Horovod has not been initialized, or its group has failed. What is returned raises it
            where the ranks do not agree on dtype, shape or op, or the operation failed.
    """
    reduction = choose_reduction(op)
    check_tensor("sparse_allreduce", tensor)
    call = begin_call("sparse_allreduce", name, process_set)
    handle = call.executor.submit(SparseAllreduce(tensor, reduction, call.among, call.name))
    return partial(call.executor.wait, handle)
