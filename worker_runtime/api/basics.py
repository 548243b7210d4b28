"""Horovod's object of everything that is not a collective; programs reach it as `mpi_ops._basics`."""

from worker_runtime.api import capabilities, job
from worker_runtime.membership.runtime import RUNTIME


class HorovodBasics:
    """The functions of `job` and `capabilities` as methods; it has no state."""

    init = staticmethod(job.init)
    shutdown = staticmethod(job.shutdown)
    is_initialized = staticmethod(job.is_initialized)
    size = staticmethod(job.size)
    local_size = staticmethod(job.local_size)
    cross_size = staticmethod(job.cross_size)
    rank = staticmethod(job.rank)
    local_rank = staticmethod(job.local_rank)
    cross_rank = staticmethod(job.cross_rank)
    is_homogeneous = staticmethod(job.is_homogeneous)
    start_timeline = staticmethod(job.start_timeline)
    stop_timeline = staticmethod(job.stop_timeline)
    mpi_threads_supported = staticmethod(capabilities.mpi_threads_supported)
    mpi_enabled = staticmethod(capabilities.mpi_enabled)
    mpi_built = staticmethod(capabilities.mpi_built)
    gloo_enabled = staticmethod(capabilities.gloo_enabled)
    gloo_built = staticmethod(capabilities.gloo_built)
    nccl_built = staticmethod(capabilities.nccl_built)
    ddl_built = staticmethod(capabilities.ddl_built)
    ccl_built = staticmethod(capabilities.ccl_built)
    cuda_built = staticmethod(capabilities.cuda_built)
    rocm_built = staticmethod(capabilities.rocm_built)

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """The registered process sets: their numbers and their ranks."""
        registered = RUNTIME.executor.process_sets
        return {number: list(registered.list_ranks(number)) for number in registered.numbers}
