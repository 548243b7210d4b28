"""Opens a forkserver where the interpreter is about to run a module: beneath its workers' programs lies no frame.

For `python -m worker_runtime.startup.forkserver` Python asks `runpy` for the function that runs modules, and calls that
from C. What it finds here asks the forkserver, and so returns once in each worker, with what runs the worker's program.

This folder stands on the forkserver's PYTHONPATH alone, and goes as soon as it was found. It holds nothing else, and
the user's own sitecustomize is imported in this one's place. Where Python does not look here, the forkserver ends with
a word about it: no other process can come to run a worker's program.
"""

import importlib
import os
import runpy
import sys
from types import ModuleType


class _Entrance(ModuleType):
    """Stands in for `runpy`, until it is asked."""

    @property
    def _run_module_as_main(self) -> object:
        sys.modules["runpy"] = runpy
        if not sys.flags.safe_path:
            del sys.path[0]  # the working directory, from which nothing may be imported
        from worker_runtime.startup.forkserver import serve  # noqa: PLC0415 - only now the search path is right

        return serve(*sys.argv[1:])


def _leave() -> None:
    """Leave no trace of this folder."""
    sys.path.remove(os.path.dirname(__file__))  # noqa: PTH120 - strings, as the path's entries
    _, _, rest = os.environ.pop("PYTHONPATH").partition(os.pathsep)
    if rest:
        os.environ["PYTHONPATH"] = rest
    del sys.modules[__name__]


_entrance = sys.modules["runpy"] = _Entrance("runpy")
vars(_entrance).update(vars(runpy))  # for others who import it
_leave()
importlib.import_module(__name__)  # the user's; where there is none, Python is told so as ever
