"""What a child of the agent writes: a pipe that nobody reads would hold it up when it says much."""

import os
import tempfile

_TAIL_BYTES = 4096


class OutputFile:
    """A file without a name, on the disk: not every Python can make one in memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in close()

    def fileno(self) -> int:
        """The descriptor to start the child with; it stays this object's."""
        return self._file.fileno()

    def read_last_line(self) -> str:
        """The last that was written; empty when there is nothing."""
        size = os.fstat(self.fileno()).st_size
        said = os.pread(self.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return said.decode(errors="replace").strip().rpartition("\n")[2]

    def close(self) -> None:
        """Give the descriptor back; the child keeps its own."""
        self._file.close()
