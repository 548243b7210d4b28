"""Makes hvdrun's own processes import this project's packages, whatever PYTHONPATH or the working directory offer.

The user's `protos` or `rendezvous` may lie on PYTHONPATH, which is for the workers (they keep the two apart in their
own way, since there both are wanted). It changes how names are found in this process, so only programs call it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_NAMES = frozenset({"hvdrun", "protos", "rendezvous"})
_ROOT = str(Path(__file__).resolve().parents[2])


class _OwnFinder(MetaPathFinder):
    """Finds the packages of this project beside this one, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path
        return PathFinder.find_spec(fullname, [_ROOT], target) if fullname in _NAMES else None


def prefer_own_packages() -> None:
    """From now on the names of this project's packages mean this project's packages."""
    sys.meta_path.insert(0, _OwnFinder())
