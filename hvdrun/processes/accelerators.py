"""How many accelerators this machine has, found without a framework and without starting a program."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NVIDIA = re.compile(r"nvidia\d+")
_NO_DEVICES = frozenset({"", "-1", "NoDevFiles"})


def count_accelerators(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """The number of accelerators that a program started here may use.

    Args:
        environment: variables, in which a scheduler lists the devices.
        root: the folder above `dev` and `sys`.
    """
    for name in _CHOICES:
        if name in environment:
            named = [choice.strip() for choice in environment[name].split(",")]
            # An entry that names no device hides the rest of the list.
            return next((at for at, choice in enumerate(named) if choice in _NO_DEVICES), len(named))
    nvidia = sum(bool(_NVIDIA.fullmatch(entry.name)) for entry in _list(root / "dev"))
    return nvidia or sum(map(_is_amd, _list(root / "sys/class/kfd/kfd/topology/nodes")))


def _is_amd(node: Path) -> bool:
    """Whether the node is a GPU: nodes of the host's CPUs have the number 0."""
    try:
        return int((node / "gpu_id").read_text()) != 0
    except (OSError, ValueError):
        return False


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
