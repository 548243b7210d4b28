"""Loads all code that a process of a detached job may need while the job runs.

hvdrun imports much of its code when a job needs it. A process that lives for days would find on the disk what an
upgrade has put there meanwhile, and not the code with which the job was begun.
"""

import importlib
import pkgutil
from pathlib import Path

# The code of workers, or of programs other than the launcher and its agents.
_OTHERS = (".shim.modules", ".testing", ".cluster", "__main__", "hvdrun.torch", "hvdrun.mxnet")


def load_all(*packages: str) -> None:
    """Import these packages of this project with all that is in them."""
    root = Path(__file__).parents[2]
    for package in packages:
        for module in pkgutil.walk_packages([str(root.joinpath(*package.split(".")))], f"{package}."):
            if not any(other in module.name for other in _OTHERS):
                importlib.import_module(module.name)
