"""The folder in memory into which the scripts of a job write checkpoints, so that the next round finds them.

It is for scripts that write files, and hvdrun neither reads nor writes these. One host has it, where all workers of a
round run: on several hosts a file that rank 0 has written would be missing where another rank looks for it.

The folder has one inside for each series of rounds on this host alone. A process that is left of an earlier series
cannot write into that of a later one.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from hvdrun.processes.folder import SHARED_MEMORY, AgentFolder, remove_orphans_in_memory
from rendezvous.bootstrap import SNAPSHOT_DIR, read_may_restart
from rendezvous.core.model import Round

LEAST_BYTES = 10**9  # of the whole file system
_MOUNTS = Path("/proc/self/mounts")
_TOO_SMALL = "{} has {:.0f} MB, and less than 1 GB is too little (docker run --shm-size)"


class SnapshotFolder:
    """The folder of one agent, in a job that may start its workers again.

    Args:
        agent_folder: the agent's other folder, whose name it has.
        environment: the variables of the job's workers.
        remark: takes a sentence for `hvdrun -v`.

    path: where it is, once a round needs it.
    """

    def __init__(self, agent_folder: Path, environment: Mapping[bytes, bytes], remark: Callable[[str], None]) -> None:
        self.path = SHARED_MEMORY / agent_folder.name
        self._may_restart = read_may_restart({os.fsdecode(key): os.fsdecode(environment[key]) for key in environment})
        self._remark = remark
        self._folder: AgentFolder | None = None
        self._lack = ""  # why workers have no such folder, as it was said last
        self._known: tuple[int, Path | None] = (-1, None)  # the last round, and its folder

    def find(self, round_: Round | None) -> Path | None:
        """The folder for a worker of this round, which exists; None where it has none.

        All workers of a round get the same answer.
        """
        if not self._may_restart or round_ is None:
            return None
        if self._known[0] != round_.number:
            self._known = round_.number, self._make(round_)
        return self._known[1]

    def _make(self, round_: Round) -> Path | None:
        lack = "this round has several hosts, and each would have other files"
        if round_.files_since is not None:
            lack = find_lack(SHARED_MEMORY, _MOUNTS)
        if not lack:
            try:
                return self._open(f"{round_.files_since}")
            except OSError as error:
                lack = f"it cannot be made ({error.strerror})"
        self.remove()
        if lack != self._lack and round_.group_rank == 0:
            self._remark(f"{SNAPSHOT_DIR} is not set: {lack}")
        self._lack = lack
        return None

    def _open(self, name: str) -> Path:
        if self._folder is None:
            remove_orphans_in_memory()
            folder = AgentFolder(self.path)
            folder.create()
            self._folder = folder
        inner = self.path / name
        inner.mkdir(mode=0o700, exist_ok=True)
        for other in self.path.iterdir():
            if other != inner:
                shutil.rmtree(other, ignore_errors=True)
        return inner

    def remove(self) -> None:
        """Remove it, and what is in it."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None


def find_lack(place: Path, mounts: Path) -> str:
    """Why this folder cannot hold files in memory; "" if it can.

    Args:
        place: the folder.
        mounts: the table of the file systems of this machine.
    """
    rows = (line.split() for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines())
    kinds = [kind for _, where, kind, *_ in rows if where == str(place)]
    if kinds[-1:] != ["tmpfs"]:
        return f"{place} is no tmpfs"
    system = os.statvfs(place)
    size = system.f_blocks * system.f_frsize
    return "" if size >= LEAST_BYTES else _TOO_SMALL.format(place, size / 1e6)
