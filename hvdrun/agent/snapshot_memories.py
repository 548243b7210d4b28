"""The memory in which a worker keeps its snapshots, so that the worker in its place finds them in the next round.

It is an empty file in memory. The agent holds a descriptor of it for the whole job, and the worker inherits one under
the same number. The agent neither reads nor writes it. The memory is given back when the last process that has it
ends, however that happens.

The place is the local rank, not the slot: the first worker of a host keeps the state, and a slot may be closed.
"""

import contextlib
import os
from collections.abc import Mapping

from rendezvous.bootstrap import SNAPSHOT_MEMORY, read_may_restart
from rendezvous.core.messages import Launch
from rendezvous.core.model import Slot


class SnapshotMemories:
    """One such memory for each local rank, in a job that may start its workers again.

    A worker that starts alone, beside those of a round, gets the memory of its slot: its local rank is an estimate.

    Args:
        environment: the variables of the job's workers.
    """

    def __init__(self, environment: Mapping[bytes, bytes]) -> None:
        self._may_restart = read_may_restart({os.fsdecode(key): os.fsdecode(environment[key]) for key in environment})
        self._memories: dict[int | Slot, int] = {}

    def find(self, launch: Launch) -> int | None:
        """The descriptor of this worker's memory; None where no worker starts again, or Linux gives none."""
        place = launch.worker.slot if launch.round is None else launch.assignment.local_rank
        if self._may_restart and place not in self._memories:
            # A Python that was built on an old Linux has no such call.
            with contextlib.suppress(AttributeError, OSError):  # the job runs without snapshots, and they say so
                self._memories[place] = os.memfd_create(SNAPSHOT_MEMORY)
        return self._memories.get(place)

    def close(self) -> None:
        """Give back all memories that no worker has."""
        while self._memories:
            os.close(self._memories.popitem()[1])
