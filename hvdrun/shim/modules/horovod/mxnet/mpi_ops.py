"""All operations, and what programs that look inside Horovod find beside them."""

from horovod._offering import offer

OPERATIONS = (
    *("allreduce", "allreduce_", "grouped_allreduce", "grouped_allreduce_", "allgather", "grouped_allgather"),
    *("broadcast", "broadcast_", "alltoall", "reducescatter", "grouped_reducescatter"),
    *("init", "shutdown", "is_initialized", "start_timeline", "stop_timeline"),
    *("size", "local_size", "cross_size", "rank", "local_rank", "cross_rank"),
    *("mpi_threads_supported", "mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built"),
    *("nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"),
    *("ProcessSet", "global_process_set", "add_process_set", "remove_process_set"),
    *("Average", "Sum", "Adasum", "Min", "Max", "Product"),
)
_TABLE = {
    "worker_runtime.mxnet": OPERATIONS,
    "worker_runtime.api.basics": ("is_homogeneous", "handle_average_backwards_compatibility", "_basics"),
    "worker_runtime.errors": ("HorovodInternalError",),
}
offer(globals(), _TABLE)
