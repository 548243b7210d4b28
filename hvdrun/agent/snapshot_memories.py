"""The memory in which the worker of a slot keeps its snapshots, so that the slot's next worker finds them.

It is an empty file in memory. The agent holds a descriptor of it for the whole job, and each worker of the slot
inherits one under the same number. The agent neither reads nor writes it. The memory is given back when the last
process that has it ends, however that happens.
"""

import contextlib
import os
from collections.abc import Mapping

from rendezvous.bootstrap import SNAPSHOT_MEMORY, read_may_restart
from rendezvous.core.model import Slot


class SnapshotMemories:
    """One such memory for each slot that gets a worker, in a job that may start its workers again.

    Args:
        environment: the variables of the job's workers.
    """

    def __init__(self, environment: Mapping[bytes, bytes]) -> None:
        self._may_restart = read_may_restart({os.fsdecode(key): os.fsdecode(environment[key]) for key in environment})
        self._memories: dict[Slot, int] = {}

    def find(self, slot: Slot) -> int | None:
        """The descriptor of this slot's memory; None where no worker starts again, or Linux gives none."""
        if self._may_restart and slot not in self._memories:
            with contextlib.suppress(OSError):  # the job runs without snapshots, and they say so
                self._memories[slot] = os.memfd_create(SNAPSHOT_MEMORY)
        return self._memories.get(slot)

    def close(self) -> None:
        """Give all back that no worker has."""
        while self._memories:
            os.close(self._memories.popitem()[1])
