"""Runs a Python program in a running interpreter as the interpreter itself would.

It supports `python script.py`, `python folder`, `python archive.zip` and `python -m module`. The interpreter's own C
functions run the program, print its uncaught exception, and end it. They are called outside of any Python function, so
that the program's frame is the outermost.

Two differences remain: modules that the forkserver has imported are in sys.modules from the start (so a program that
has its own module of such a name is executed instead), and the recursion limit is reached at another depth.
"""

import ctypes
import os
import pkgutil
import runpy
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import BuiltinImporter, PathFinder
from io import open_code
from types import ModuleType

from worker_runtime.rendezvous import isolation

_MODULE_FLAG = "-m"
_MAIN = "__main__"
_MP_MAIN = "__mp_main__"  # the module name of the script's classes in objects from spawned children
_OURS = frozenset({_MAIN, *isolation.NAMES})  # `isolation` handles the latter

Program = Callable[..., object]  # runs the program without a Python frame; its arguments are ignored


def load(arguments: Sequence[str]) -> Program:
    """Prepare this process for the program of a command (interpreter first), up to its first instruction.

    Raises:
        OSError: the script does not exist.
    """
    sys.orig_argv[:] = arguments
    _renew_main()
    if arguments[1] == _MODULE_FLAG:
        sys.argv[:] = [_MODULE_FLAG, *arguments[3:]]
        _search_first(os.getcwd())  # noqa: PTH109 - a string, as the interpreter has it
        return _make_module_program(arguments[2], True)  # noqa: FBT003 - as the interpreter calls it
    sys.argv[:] = arguments[1:]
    path = _locate(arguments[1])
    if pkgutil.get_importer(path) is not None:  # a folder, or an archive
        sys.path.insert(0, path)
        return _make_module_program(_MAIN, False)  # noqa: FBT003 - as the interpreter calls it
    _search_first(_find_folder(path))
    return _make_script_program(os.fsencode(path))


def _renew_main() -> None:
    """Create a new `__main__`, since garbage collections ignore the one from before the fork."""
    main = sys.modules[_MAIN] = ModuleType(_MAIN)
    vars(main).update(__doc__=None, __loader__=BuiltinImporter)
    if sys.version_info < (3, 14):  # newer: a module has annotations where it declares some
        vars(main).update(__annotations__={})
    vars(main).update(__builtins__=sys.modules["builtins"])
    if _MP_MAIN in sys.modules:  # multiprocessing has registered the former one under this name too
        sys.modules[_MP_MAIN] = main


def _make_module_program(*arguments: object) -> Program:
    """The interpreter's call for `-m`. NULL ends the C arguments: later ones are not read."""
    call = ctypes.PyDLL(None).PyObject_CallFunctionObjArgs
    call.argtypes = (ctypes.py_object,) * (1 + len(arguments)) + (ctypes.c_void_p,)
    call.restype = ctypes.py_object
    return partial(call, runpy._run_module_as_main, *arguments, None)  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does


def _make_script_program(path: bytes) -> Program:
    """The interpreter's call for a script, which prints an uncaught exception before it returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(path, b"rbe")
    if not file:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    run = ctypes.PyDLL(None).PyRun_SimpleFileExFlags
    run.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
    run.restype = _conclude
    return partial(run, file, path, True, None)  # noqa: FBT003 - the file is closed


def _conclude(returned: int) -> None:
    """End the process as the interpreter does after an uncaught exception, which it has printed."""
    if returned:
        raise SystemExit(1)


def find_objection(words: Sequence[str]) -> str:
    """The reason why the program must not run in this process with its imported modules; "" if it may.

    Args:
        words: the command after the interpreter; words after the second may be missing.
    """
    if words[0] == _MODULE_FLAG:
        if not {words[1], f"{words[1]}.{_MAIN}"}.isdisjoint(sys.modules):
            return f"the forkserver has imported {words[1]} already"
        return _find_shadow(os.getcwd())  # noqa: PTH109 - a string, as the path's other entries

    path = _locate(words[0])
    if pkgutil.get_importer(path) is not None:
        return _find_shadow(path, is_certain=True)
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - the interpreter keeps this path as a string
        return "the script is no file, and can be read only once"

    try:
        with open_code(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the worker's compilation shows them
            compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"the script cannot be compiled: {type(error).__name__}"
    return _find_shadow(_find_folder(path))


def _find_shadow(folder: str, *, is_certain: bool = False) -> str:
    """The reason, if the program has its own modules in place of some imported ones; "" if not."""
    if sys.flags.safe_path and not is_certain:
        return ""
    for name, module in tuple(sys.modules.items()):
        if "." in name or name in _OURS or getattr(module, "__file__", None) is None:
            continue
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin is not None and not _is_same(spec.origin, module):
            return f"{spec.origin} would be imported before another {name}, which the forkserver has imported"
    return ""


def _is_same(origin: str, module: ModuleType) -> bool:
    with suppress(OSError):  # one of them is no file, so it is another
        return module.__file__ is not None and os.path.samefile(origin, module.__file__)  # noqa: PTH121 - strings both
    return False


def _locate(name: str) -> str:
    """The absolute path of a script, in the interpreter's form."""
    return name if name.startswith("/") else f"{os.getcwd()}/{name}"  # noqa: PTH109 - the interpreter keeps this path as a string


def _find_folder(path: str) -> str:
    """The first entry of the search path for a script."""
    return os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - a string, as the interpreter has it


def _search_first(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)
