"""Pickles a function with the program's own modules, and reads its outcome.

The program's own modules are sent, as other hosts may not share its folder: the modules and packages that it has
imported from folders outside the Python installation, and the `.py` files beside it. Installed packages are not sent:
the workers' Python has them.
"""

import os
import pickle
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import CodeType, ModuleType
from typing import IO, Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types

from hvdrun.cluster.errors import RemoteError, RemoteTraceback, UnsendableError
from hvdrun.startup.paths import is_folder
from hvdrun.tasks.messages import INLINE_BYTES, Body, Delivered
from rendezvous.wire.tasks import find_unsendable
from rendezvous.wire.tensors import reduce_tensor

Unit = tuple[str, Mapping[str, bytes]]  # a folder, and the sources of one module or package by their path in it
_HIDDEN = "<dynamic-code>"  # cloudpickle's name for any file
_ON_ALL_HOSTS = frozenset({"horovod", "hvdrun", "protos", "rendezvous", "worker_runtime"})


def collect_modules() -> tuple[Unit, ...]:
    """The sources of the program's own modules that can be read."""
    folders = list_own_folders(sys.path)
    found: dict[tuple[Path, str], list[Path]] = {}
    for name, module in list(sys.modules.items()):
        if "." not in name and name not in _ON_ALL_HOSTS:
            for folder, files in _list_files(module, folders):
                found[folder, name] = files
    beside = find_program_folder()
    if beside in folders:
        for file in beside.glob("*.py"):
            found.setdefault((beside, file.stem), [file])
    units = ((str(folder), _read(folder, files)) for (folder, _), files in found.items())
    return tuple((folder, sources) for folder, sources in units if sources)


def list_own_folders(search_path: Sequence[str]) -> list[Path]:
    """The folders of the search path outside the Python installation."""
    installed = {Path(path) for path in (*sysconfig.get_paths().values(), *site.getsitepackages())}
    installed.add(Path(site.getusersitepackages()))
    folders = (Path(os.path.abspath(path)) for path in search_path)  # noqa: PTH100 - links stay as in sys.path
    return [
        folder
        for folder in dict.fromkeys(folders)
        if installed.isdisjoint({folder, *folder.parents}) and is_folder(folder)
    ]


def find_program_folder() -> Path:
    """The folder of the script; the current folder of a notebook or a prompt."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.abspath(script or "_")).parent  # noqa: PTH100 - links stay as in sys.path


def _list_files(module: ModuleType, folders: Sequence[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """The sources of a top-level module, each with the folder of the search path that has it."""
    roots = [Path(root) for root in getattr(module, "__path__", ())]
    for root in roots:
        if root.parent in folders:
            yield root.parent, sorted(root.rglob("*.py"))
    file = getattr(module, "__file__", None)
    if not roots and file is not None and file.endswith(".py") and Path(file).parent in folders:
        yield Path(file).parent, [Path(file)]


def _read(folder: Path, files: Sequence[Path]) -> dict[str, bytes]:
    sources: dict[str, bytes] = {}
    for file in files:
        with suppress(OSError):  # a broken link, or no permission
            sources[str(file.relative_to(folder))] = file.read_bytes()
    return sources


class NamingPickler(cloudpickle.Pickler):  # type: ignore[misc]  # it ships no types
    """Pickles functions by value with the names of their files, which tracebacks and warnings on the workers show.

    cloudpickle 3.1.3 and newer replace these names. Tensors are pickled as `reduce_tensor` does it.
    """

    def reducer_override(self, obj: Any) -> Any:
        """See `pickle.Pickler`."""
        if isinstance(obj, CodeType) and (reduce := self.dispatch_table.get(CodeType)) is not None:
            make, arguments, *rest = reduce(obj)
            named = (obj.co_filename if isinstance(each, str) and each == _HIDDEN else each for each in arguments)
            return (make, tuple(named), *rest)
        if (made := reduce_tensor(obj)) is not NotImplemented:
            return made
        return super().reducer_override(obj)


class _Pickler(NamingPickler):
    """Pickles objects by value whose module the workers cannot import by its name, as some that pytest imports.

    Args:
        file: where it writes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.lost: dict[str, ModuleType] = {}
        self._seen: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) or callable(obj):
            self._look(getattr(obj, "__module__", None))
        return super().reducer_override(obj)

    def _look(self, name: object) -> None:
        if not isinstance(name, str) or name in self._seen or name == "__main__":
            return
        self._seen.add(name)
        module = sys.modules.get(name)
        is_sent = name in cloudpickle.list_registry_pickle_by_value()  # the caller has registered it
        if module is not None and not is_sent and not can_be_found(module):
            cloudpickle.register_pickle_by_value(module)
            self.lost[name] = module


def can_be_found(module: ModuleType) -> bool:
    """Another Python with this search path imports the same file under the module's name."""
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        # Of the interpreter or an extension, which workers have too.
        return True
    spec = _find_spec(module.__name__)
    if spec is None or spec.origin is None:
        return False
    try:
        return Path(spec.origin).samefile(file)
    except OSError:
        return True


def _find_spec(name: str) -> ModuleSpec | None:
    """Where a module would be imported from, without regard to sys.modules."""
    parent, _, _ = name.rpartition(".")
    path: Sequence[str] | None = None
    if parent:
        spec = _find_spec(parent)
        path = None
        if spec is not None:
            path = spec.submodule_search_locations
        if path is None:
            return None
    found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)


def pack(
    function: Callable[..., object],
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    *,
    begins_anew: bool = False,
    is_last: bool = False,
    leaves_group: bool = False,
    modules: tuple[Unit, ...] = (),
) -> Body:
    """Pickle a task: the settings for the workers, and the function with its arguments.

    Raises:
        UnsendableError: a part cannot be pickled; the message names it.
        TypeError: the function or the arguments have the wrong type.
    """
    if not callable(function):
        raise TypeError(
            f"a function is needed, not {type(function).__name__}: write run(train, args=(2,)) for train(2)."
        )
    if not isinstance(arguments, Iterable) or not isinstance(keywords, Mapping):
        raise TypeError("args is a tuple and kwargs a dictionary: write run(train, args=(2,)) for train(2).")

    with SpooledTemporaryFile(INLINE_BYTES, prefix="hvdrun-") as file:
        pickle.dump((list_paths(), begins_anew, is_last, leaves_group, modules), file)
        pickler = _Pickler(file)
        try:
            pickler.dump((function, tuple(arguments), dict(keywords)))
        except Exception as error:
            raise UnsendableError(_explain(function, arguments, keywords, error)) from error
        finally:
            for module in pickler.lost.values():
                cloudpickle.unregister_pickle_by_value(module)
        return Body.of(file)  # type: ignore[arg-type]  # such a file is one


def _explain(
    function: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object], error: Exception
) -> str:
    """The message for a task that cannot be pickled; the pickler has raised `error`."""
    name = getattr(function, "__name__", type(function).__name__)
    parts = [
        (name, function),
        *((f"the argument {position} of {name}", value) for position, value in enumerate(arguments)),
        *((f"the argument {word!r} of {name}", value) for word, value in keywords.items()),
    ]
    for part, value in parts:
        if not _is_sendable(value):
            return f"{find_unsendable(part, value, _is_sendable)}; create it inside the function, or leave it out."
    return f"{name} cannot be sent to the workers: {error}"


def _is_sendable(value: object) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - the object's own code may raise anything
        return False
    return True


def list_paths() -> tuple[str, ...]:
    """The folders in which this program finds its modules; workers with these folders look there first."""
    return tuple(os.path.abspath(path) for path in sys.path if not path or os.path.isdir(path))  # noqa: PTH100, PTH112 - strings, as sys.path has them


def read_result(delivered: Delivered) -> Any:
    """The result of a function.

    Raises:
        RemoteError: it cannot be unpickled here.
    """
    with delivered.body.open() as file:
        try:
            return pickle.load(file)  # noqa: S301 - from an authenticated worker
        except Exception as error:
            sentence = f"the result of rank {delivered.rank} cannot be read here: {error}"
            raise RemoteError(delivered.rank, type(error).__name__, sentence) from error


def read_error(delivered: Delivered) -> BaseException:
    """The exception of a function; its cause shows the traceback on the worker."""
    with delivered.body.open() as file:
        kind, text, traceback, pickled = pickle.load(file)  # noqa: S301 - from an authenticated worker
    if not kind:
        return UnsendableError(
            f"rank {delivered.rank}: {text}; return numbers, arrays, text, or another object that can be pickled."
        )

    error: BaseException | None = None
    if pickled is not None:
        try:
            error = pickle.loads(pickled)  # noqa: S301 - from an authenticated worker
        except Exception:  # noqa: BLE001 - the object's own code may raise anything
            error = None

    if not isinstance(error, Exception):
        error = RemoteError(delivered.rank, kind, text)
    if isinstance(error, ModuleNotFoundError):
        _explain_missing(error, delivered.rank)
    error.__cause__ = RemoteTraceback(delivered.rank, traceback)
    return error


def _explain_missing(error: ModuleNotFoundError, rank: int) -> None:
    """Add a note with the remedy for a module that this program finds, and a worker does not."""
    spec = None
    if error.name:
        spec = _find_spec(error.name)
    if spec is not None:
        error.add_note(
            f"Here {error.name} is imported from {spec.origin or 'a folder'}. Install it on the host of rank {rank}; "
            "or, if it is your own, import it in your program before the call, so that hvdrun sends it."
        )
