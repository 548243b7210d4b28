"""How many accelerators this machine has, found without a framework and without starting a program."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

_CHOICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NVIDIA = re.compile(r"nvidia\d+")
_NONE = frozenset({"", "-1", "NoDevFiles"})


def count_accelerators(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """Those that a program started here may use.

    Args:
        environment: where a scheduler says which they are.
        root: beneath which the kernel lists the devices.
    """
    for name in _CHOICES:
        if name in environment:
            named = [choice.strip() for choice in environment[name].split(",")]
            return next((at for at, choice in enumerate(named) if choice in _NONE), len(named))  # it hides what follows
    nvidia = sum(bool(_NVIDIA.fullmatch(entry.name)) for entry in _list(root / "dev"))
    return nvidia or sum(map(_is_amd, _list(root / "sys/class/kfd/kfd/topology/nodes")))


def _is_amd(node: Path) -> bool:
    """The node is a processor of its own: those of the host have no number."""
    try:
        return int((node / "gpu_id").read_text()) != 0
    except (OSError, ValueError):
        return False


def _list(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
