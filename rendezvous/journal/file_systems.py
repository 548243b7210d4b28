"""The file systems on which a journal is not safe: those of servers, whose locks and writes other hosts see later."""

import ctypes
import os
from pathlib import Path

# The numbers of statfs(2).
_SHARED = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x5346414F: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
}
_STRUCTURE_BYTES = 256  # more than any system's


def find_shared_kind(path: Path) -> str | None:
    """The name of the shared file system that a folder is on; None for a local one, or if that is not known."""
    return _SHARED.get(read_kind(path))


def read_kind(path: Path) -> int:
    """The number of a folder's file system; 0 if it is not known."""
    structure = ctypes.create_string_buffer(_STRUCTURE_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(path), structure) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(structure).value & 0xFFFFFFFF
