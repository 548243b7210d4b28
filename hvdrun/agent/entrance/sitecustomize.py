"""Starts the forkserver where the interpreter is about to run a module, so that no frame lies below a worker's program.

For `python -m worker_runtime.startup.forkserver` Python looks up the function of `runpy` that runs modules, and calls
it from C. This module replaces `runpy`: the lookup runs the forkserver, and returns once in each forked worker, with
the function that runs the worker's program.

Only the PYTHONPATH of the forkserver has this folder, and this module removes it immediately. Then it imports the
user's `sitecustomize`. Where Python does not import this module, the forkserver ends with an error, and workers are
executed.
"""

import importlib
import os
import runpy
import sys
from types import ModuleType


class _Entrance(ModuleType):
    """Replaces `runpy` until the first lookup."""

    @property
    def _run_module_as_main(self) -> object:
        sys.modules["runpy"] = runpy
        if not sys.flags.safe_path:
            del sys.path[0]  # the working directory: nothing may be imported from there
        from worker_runtime.startup.forkserver import serve  # noqa: PLC0415 - only now the search path is right

        return serve(*sys.argv[1:])


def _leave() -> None:
    """Remove this folder from the search path and the environment."""
    sys.path.remove(os.path.dirname(__file__))  # noqa: PTH120 - strings, as the path's entries
    _, _, rest = os.environ.pop("PYTHONPATH").partition(os.pathsep)
    if rest:
        os.environ["PYTHONPATH"] = rest
    del sys.modules[__name__]


_entrance = sys.modules["runpy"] = _Entrance("runpy")
vars(_entrance).update(vars(runpy))  # for other modules that import it
_leave()
importlib.import_module(__name__)  # the user's; Python ignores the ImportError where there is none
