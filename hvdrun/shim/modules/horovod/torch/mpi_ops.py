"""All operations, and what programs that look inside Horovod find beside them."""

from horovod._offering import offer

OPERATIONS = (
    *("allreduce", "allreduce_async", "allreduce_", "allreduce_async_", "sparse_allreduce_async"),
    *("grouped_allreduce", "grouped_allreduce_async", "grouped_allreduce_", "grouped_allreduce_async_"),
    *("allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"),
    *("broadcast", "broadcast_async", "broadcast_", "broadcast_async_", "alltoall", "alltoall_async"),
    *("reducescatter", "reducescatter_async", "grouped_reducescatter", "grouped_reducescatter_async"),
    *("join", "barrier", "poll", "synchronize"),
    *("init", "shutdown", "is_initialized", "start_timeline", "stop_timeline"),
    *("size", "local_size", "cross_size", "rank", "local_rank", "cross_rank"),
    *("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
    *("ProcessSet", "global_process_set", "add_process_set", "remove_process_set"),
    *("Average", "Sum", "Adasum", "Min", "Max", "Product"),
)
_FUNCTIONS = (  # torch.autograd's
    *("HorovodAllreduce", "HorovodGroupedAllreduce", "HorovodAllgather", "HorovodGroupedAllgather"),
    *("HorovodBroadcast", "HorovodAlltoall", "HorovodReducescatter", "HorovodGroupedReducescatter"),
)
_TABLE = {
    "worker_runtime.torch": OPERATIONS,
    "worker_runtime.torch.autograd.functions": _FUNCTIONS,
    "worker_runtime.api.basics": ("is_homogeneous", "handle_average_backwards_compatibility", "_basics"),
    "worker_runtime.api.functions": ("_handle_map",),
    "worker_runtime.errors": ("HorovodInternalError",),
}
offer(globals(), _TABLE)
