"""`hvdrun.torch` and `hvdrun.mxnet`: names of the worker runtime's modules, under which they are the same objects.

Only a program that imports one of these names imports a framework. hvdrun itself imports neither: the launcher needs no
runtime, so the modules are found by their names, when they are asked for.
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_RUNTIME = "worker_runtime"
_PACKAGE = __name__.partition(".")[0]


class _Finder(MetaPathFinder, Loader):
    """Finds `hvdrun.torch.x` as `worker_runtime.torch.x`; else that file would become a second module.

    Args:
        name: `hvdrun.torch`, say.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}."
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        if not fullname.startswith(self._prefix):
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `Loader`: the runtime's module. Python then writes its own spec into it, until `exec_module`."""
        module = import_module(_translate(spec.name))
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """See `Loader`: the module was executed under its own name, and keeps its own spec."""
        if module.__spec__ is not None:
            module.__spec__ = self._specs.pop(module.__spec__.name)


def become_runtime(name: str) -> None:
    """Make a module of this package the runtime's module of the same name.

    Message: MODULE cannot be imported: PYTHON has no PACKAGE; install it there
    Cause: The Python of the workers has no torch, or no mxnet.
    Remedy: Activate the environment that has it before you start hvdrun, or install it.

    Args:
        name: the module, `hvdrun.torch` say.

    Raises:
        ImportError: the runtime, or the framework, cannot be imported.
    """
    framework = name.rpartition(".")[2]
    try:
        module = import_module(_translate(name))
    except ModuleNotFoundError as error:
        if error.name != framework:
            raise
        message = f"{name} cannot be imported: {sys.executable} has no {framework}; install it there"
        raise ImportError(message, name=name) from error
    sys.meta_path.insert(0, _Finder(name))  # before the one that would find the files
    sys.modules[name] = module


def _translate(name: str) -> str:
    return _RUNTIME + name.removeprefix(_PACKAGE)
