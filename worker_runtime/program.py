"""A Python program run the way the interpreter itself runs it, in a process that is an interpreter already.

`python script.py` and `python -m module` in their plain forms; `__main__` is a real module that stays in sys.modules,
so that classes defined in the script can be pickled from anywhere, at exit too.
"""

import atexit
import importlib.util
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

_MODULE_FLAG = "-m"


@dataclass(frozen=True, slots=True)
class Program:
    """Code to run and the module it runs in."""

    code: CodeType
    module: ModuleType


def load(arguments: Sequence[str]) -> Program:
    """Prepare this process for the program that the command (interpreter first) names, up to its first instruction.

    Raises:
        OSError, ImportError, SyntaxError, ...: there is no such program, or it cannot be compiled; executing the
            command would say the same in Python's own words.
    """
    sys.orig_argv[:] = arguments
    if arguments[1] == _MODULE_FLAG:
        return _load_module(arguments[2], list(arguments[3:]))
    return _load_script(list(arguments[1:]))


def end_badly(error: BaseException) -> None:
    """Say what ended the program, and let the interpreter end as it does then; `error` was caught one frame below it.

    Raises:
        SystemExit: always, but for a KeyboardInterrupt, after which the process ends by SIGINT.
    """
    traceback = error.__traceback__
    shown = None if traceback is None else traceback.tb_next  # without the frame that ran the program
    sys.excepthook(type(error), error.with_traceback(shown), shown)
    if isinstance(error, KeyboardInterrupt):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - what the interpreter itself calls
        atexit._run_exitfuncs()  # noqa: SLF001 - the same
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(1)


def _load_script(argv: list[str]) -> Program:
    name = argv[0]
    path = name if name.startswith("/") else f"{os.getcwd()}/{name}"  # noqa: PTH109 - joined as the interpreter joins
    sys.argv[:] = argv
    _search_first(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - a string, as the interpreter has it
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = _make_main(code.co_filename, spec=None, loader=SourceFileLoader("__main__", path), package=None)
    return Program(code, module)


def _load_module(name: str, rest: list[str]) -> Program:
    sys.argv[:] = [_MODULE_FLAG, *rest]
    _search_first(os.getcwd())  # noqa: PTH109 - a string, as the interpreter has it
    spec = _find(name)
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]  # _find has checked it
    if code is None:
        raise ImportError(f"no code object available for {spec.name}")
    sys.argv[0] = spec.origin or name
    return Program(code, _make_main(spec.origin, spec=spec, loader=spec.loader, package=spec.parent))


def _find(name: str) -> ModuleSpec:
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise ImportError(f"No module named {name}")
    return spec


def _search_first(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _make_main(file: str | None, spec: ModuleSpec | None, loader: object, package: str | None) -> ModuleType:
    module = ModuleType("__main__")
    vars(module).update(
        __builtins__=sys.modules["builtins"],
        __annotations__={},
        __file__=file,
        __cached__=None if spec is None else spec.cached,
        __loader__=loader,
        __package__=package,
        __spec__=spec,
    )
    sys.modules["__main__"] = module
    return module
