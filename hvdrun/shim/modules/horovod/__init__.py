"""`import horovod`: this project under Horovod's names, or the Horovod that is installed.

The agent puts the folder above first on the workers' PYTHONPATH. Which Horovod a program gets is decided here, by the
process that imports it: nobody else knows which interpreter, virtual environment or search path that has in the end
(`sh -c "python train.py"`, a child of a worker). Under `--horovod-shim auto` this package looks for another `horovod`
behind itself, and where there is one, becomes it; nothing is looked for before somebody says `import horovod`.

Everything here only leads to `worker_runtime`. This file runs in whatever Python a worker is, also in one too old for
the rest, since a Horovod may be installed there: so its syntax is that of Python 3.8, and it imports nothing of ours.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

__all__ = ["run"]
__version__ = "0.28.1"  # the Horovod whose names these are; numbers alone: programs take it apart

_MODE = os.environ.get("HVD_HOROVOD_SHIM", "on")  # without hvdrun it was asked for by name: python -m hvdrun.shim
_FOLDER = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir))  # noqa: PTH118, PTH120 - strings, as sys.path has
_ANY_SHIM = os.path.join("hvdrun", "shim", "modules")  # noqa: PTH118 - a string as in sys.path; the worker's Python may have an hvdrun of its own


def _find_installed() -> "ModuleSpec | None":
    """The Horovod that would be imported if there were no shim."""
    rest = [entry for entry in sys.path if not _is_shim(entry)]
    for finder in sys.meta_path:
        if not hasattr(finder, "find_spec"):
            # As older Pythons let finders be.
            continue
        spec = finder.find_spec(__name__, rest if finder is PathFinder else None)
        if spec is None or spec.loader is None or spec.origin is None:
            # Nothing, or a mere folder of that name.
            continue
        if not _is_shim(os.path.dirname(os.path.dirname(spec.origin))):  # noqa: PTH120 - compared with strings of sys.path
            return spec
    return None


def _is_shim(folder: str) -> bool:
    real = os.path.realpath(folder)
    return real == _FOLDER or real.endswith(os.sep + _ANY_SHIM)


def _become(spec: ModuleSpec) -> None:
    """Be that package for this import and all later ones; what it raises, the import raises."""
    module = module_from_spec(spec)
    sys.modules[__name__] = module
    if spec.loader is not None:
        spec.loader.exec_module(module)


def __getattr__(name: str) -> object:
    """`run`, which is imported when it is used: a worker seldom does."""
    if name == "run":
        from importlib import import_module  # noqa: PLC0415 - a worker seldom uses it

        return getattr(import_module("horovod.runner"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_installed = None if _MODE == "on" else _find_installed()
if _installed is not None:
    _become(_installed)
else:
    if _MODE == "off":
        raise ModuleNotFoundError(
            f"No module named '{__name__}': Horovod is not installed in {sys.executable}, and --horovod-shim off "
            "keeps hvdrun from standing in for it",
            name=__name__,
        )
    from horovod._modules import Finder

    sys.meta_path.append(Finder())
