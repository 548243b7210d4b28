"""What ranks tell each other about their snapshots, over the program's own process group of torch.distributed."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from worker_runtime.errors import SnapshotError

_CHUNK_BYTES = 64 << 20
_DAMAGED = "the snapshot in the memory of rank {} is damaged: start a new job"
Read = Callable[[], tuple[bytes, Any, int] | None]  # the description, the data, how many bytes; None if damaged


class Group(Protocol):
    """The ranks of the job."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks."""

    def share(self, source: int, read: Read) -> tuple[bytes, Any]:
        """What one rank reads, on all ranks: a description, and the data that it describes.

        Raises:
            SnapshotError: `read` has returned None.
        """


class Alone:
    """A job of one rank."""

    rank, size = 0, 1

    def gather(self, value: Any) -> list[Any]:
        """See `Group`."""
        return [value]

    def share(self, source: int, read: Read) -> tuple[bytes, Any]:
        """See `Group`."""
        found = read()
        if found is None:
            raise SnapshotError(_DAMAGED.format(source))
        return found[:2]


class WholeGroup:
    """The program's default process group."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        backends = str(dist.distributed_c10d.get_backend_config())
        self._device = torch.device("cpu")
        if "cpu:gloo" not in backends and "cpu:mpi" not in backends:
            self._device = torch.device("cuda", torch.cuda.current_device())

    def gather(self, value: Any) -> list[Any]:
        """See `Group`."""
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def share(self, source: int, read: Read) -> tuple[bytes, Any]:
        """See `Group`."""
        found = None
        head: list[Any] = [None]
        if self.rank == source:
            found = read()
            head = [None if found is None else (found[0], found[2])]
        dist.broadcast_object_list(head, source)
        if head[0] is None:
            raise SnapshotError(_DAMAGED.format(source))
        description, size = head[0]
        data = bytearray(size) if found is None else found[1]
        for start in range(0, size, _CHUNK_BYTES):
            count = min(_CHUNK_BYTES, size - start)
            chunk = torch.frombuffer(data, dtype=torch.uint8, count=count, offset=start)
            moved = chunk.to(self._device)
            dist.broadcast(moved, source)
            if found is None and moved is not chunk:
                chunk.copy_(moved)
        return description, data


def find_group(size: int) -> Group:
    """The ranks of this job of `size`.

    Raises:
        SnapshotError: they are not connected.
    """
    if dist.is_available() and dist.is_initialized():
        return WholeGroup()
    if size == 1:
        return Alone()
    raise SnapshotError("restore() needs the ranks' process group: call torch.distributed.init_process_group() before")
