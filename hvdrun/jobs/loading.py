"""Loads all code that a server of a job may need, before the next one is forked.

hvdrun imports much of its code when a job needs it. A later server would find on the disk what an upgrade has put there
meanwhile, and not the code with which the job was begun.
"""

import importlib
import pkgutil
from pathlib import Path

_PACKAGES = ("hvdrun", "rendezvous")
# The code of workers, or of programs other than the launcher.
_OTHERS = (".shim.modules", ".testing", ".cluster", "__main__", "hvdrun.torch", "hvdrun.mxnet")


def load_all() -> None:
    """Import the packages of the launcher and of the rendezvous."""
    root = Path(__file__).parents[2]
    for package in _PACKAGES:
        for module in pkgutil.walk_packages([str(root / package)], f"{package}."):
            if not any(other in module.name for other in _OTHERS):
                importlib.import_module(module.name)
