"""MPI: for workers that mpirun has started, where torch was built with it. Only the set of all ranks has such groups.

MPI numbers the processes that its own launcher has started, and makes a group only when all of them ask for it.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from worker_runtime.groups.torch_groups import TorchGroup


@dataclass(frozen=True, slots=True)
class Mpi:
    """How MPI's groups are made; size: of the job."""

    size: int

    def connect(self, prefix: str, rank: int, size: int, limit: timedelta) -> TorchGroup | None:
        """Make a group; see `gated.Connect`.

        Raises:
            RuntimeError: MPI cannot, or knows other processes than these.
        """
        del prefix, limit  # MPI has neither
        if size != self.size:
            return None
        mpi: Any = dist.distributed_c10d.ProcessGroupMPI
        group: Any = mpi.create([])
        if (group.rank(), group.size()) != (rank, size):
            raise RuntimeError(
                f"to MPI this worker is rank {group.rank()} of {group.size()}, and to the job {rank} of {size}; start "
                f"the script with 'mpirun -np {size}' and HVD_BACKEND=mpi"
            )
        made: TorchGroup = group
        return made
