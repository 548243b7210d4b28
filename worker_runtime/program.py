"""A Python program run the way the interpreter itself runs it, in a process that is an interpreter already.

`python script.py`, `python folder`, `python archive.zip` and `python -m module`. `__main__` is a real module that stays
in sys.modules, so that classes defined in the script can be pickled from anywhere, at exit too. What an uncaught
exception shows and does is left to the interpreter; only the frame that ran the program is taken out of its traceback.

What cannot be made equal: modules that were imported before the program are in sys.modules from its start (so a program
that brings one of these itself is executed); and beneath its frames lies one more, seen by `traceback.print_stack()`,
by `warnings.warn(..., stacklevel=2)` at the top of a script, and in the depth at which recursion ends.
"""

import os
import pkgutil
import runpy
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import BuiltinImporter, PathFinder, SourceFileLoader
from io import open_code
from types import ModuleType, TracebackType

from worker_runtime import own_packages

_MODULE_FLAG = "-m"
_MAIN = "__main__"
_MP_MAIN = "__mp_main__"  # what children that were spawned call the script's classes when they send them back
_OURS = frozenset({_MAIN, *own_packages.NAMES})  # the latter have a way of their own to step aside


@dataclass(frozen=True, slots=True)
class Program:
    """What runs a program: `run(*arguments)`, with no frame of another function between.

    variables: the program's globals.
    """

    run: Callable[..., object]
    arguments: tuple[object, ...]
    variables: dict[str, object]

    def end(self) -> None:
        """Do what the interpreter does after the last instruction of a script, before any atexit function."""
        if self.run is exec:
            for name in ("__file__", "__cached__"):
                self.variables.pop(name, None)

    def fail(self) -> None:
        """Keep the caller's frame out of the traceback of the exception that it lets pass to the interpreter.

        To be called in the frame that ran the program, which then raises the exception again.
        """
        if not hasattr(sys, "excepthook"):  # the interpreter has words of its own for that
            return
        hook = sys.excepthook

        def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            shown = None if traceback is None else traceback.tb_next
            sys.last_traceback = shown
            error.__traceback__ = shown
            sys.excepthook = hook
            _call_hook(kind, error, shown)
            self.end()

        sys.excepthook = show


def load(arguments: Sequence[str]) -> Program:
    """Prepare this process for the program that the command (interpreter first) names, up to its first instruction.

    Raises:
        OSError, SyntaxError, ...: there is no such script, or it cannot be compiled; executing the command would say
            the same in Python's own words.
    """
    sys.orig_argv[:] = arguments
    main = sys.modules[_MAIN] = _make_main()
    if _MP_MAIN in sys.modules:  # multiprocessing, imported before, has noted the former one under this name as well
        sys.modules[_MP_MAIN] = main
    if arguments[1] == _MODULE_FLAG:
        sys.argv[:] = [_MODULE_FLAG, *arguments[3:]]
        _search_first(os.getcwd())  # noqa: PTH109 - a string, as the interpreter has it
        return Program(runpy._run_module_as_main, (arguments[2],), vars(main))  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
    sys.argv[:] = arguments[1:]
    path = _locate(arguments[1])
    if pkgutil.get_importer(path) is not None:  # a folder, or an archive
        sys.path.insert(0, path)
        return Program(runpy._run_module_as_main, (_MAIN, False), vars(main))  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
    _search_first(_find_folder(path))
    vars(main).update(__file__=path, __cached__=None, __loader__=SourceFileLoader(_MAIN, path))
    with open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    return Program(exec, (code, vars(main)), vars(main))


def find_objection(words: Sequence[str]) -> str:
    """Why the program must not run in this process, with what has been imported here; "" when it may.

    words: the command after the interpreter; all but the first two may be missing.
    """
    if words[0] == _MODULE_FLAG:
        if not {words[1], f"{words[1]}.{_MAIN}"}.isdisjoint(sys.modules):
            return f"the forkserver has imported {words[1]} already"
        return _find_shadow(os.getcwd())  # noqa: PTH109 - a string, as the path's other entries
    path = _locate(words[0])
    if pkgutil.get_importer(path) is not None:
        return _find_shadow(path, is_certain=True)
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - a string
        return "the script is no file, and can be read only once"
    try:
        with open_code(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when the worker compiles it
            compile(file.read(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"the script cannot be compiled: {type(error).__name__}"
    return _find_shadow(_find_folder(path))


def _find_shadow(folder: str, *, is_certain: bool = False) -> str:
    """Why not, when the program would find other modules of its own in place of some that have been imported."""
    if sys.flags.safe_path and not is_certain:
        return ""
    for name, module in tuple(sys.modules.items()):
        if "." in name or name in _OURS or getattr(module, "__file__", None) is None:
            continue
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin is not None and not _is_same(spec.origin, module):
            return f"{spec.origin} stands before another {name}, which the forkserver has imported"
    return ""


def _is_same(origin: str, module: ModuleType) -> bool:
    with suppress(OSError):
        return module.__file__ is not None and os.path.samefile(origin, module.__file__)  # noqa: PTH121 - strings both
    return False


def _locate(name: str) -> str:
    """The absolute path of a script, made as the interpreter makes it."""
    return name if name.startswith("/") else f"{os.getcwd()}/{name}"  # noqa: PTH109 - a string


def _find_folder(path: str) -> str:
    """What stands first on the search path for this script."""
    return os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - a string, as the interpreter has it


def _search_first(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _make_main() -> ModuleType:
    """`__main__` as it is before the program."""
    main = ModuleType(_MAIN)
    vars(main).update(
        __doc__=None, __loader__=BuiltinImporter, __annotations__={}, __builtins__=sys.modules["builtins"]
    )
    return main


def _call_hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Call the excepthook, and say what the interpreter says when that fails."""
    try:
        sys.excepthook(kind, error, traceback)
    except SystemExit:
        raise
    except BaseException as failure:  # noqa: BLE001 - whatever it is, the original exception is shown
        own = failure.__traceback__
        _say("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failure), failure.with_traceback(own and own.tb_next), own and own.tb_next)
        _say("\nOriginal exception was:\n")
        sys.__excepthook__(kind, error, traceback)


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
