"""Keeps this project's `protos` and `rendezvous` apart from folders of the same names beside the user's script.

Python searches the script's folder first, so `import protos` would find the user's there; and once ours were imported,
the user's own `import protos` would find ours. Where that can happen, and only there, ours are imported past the search
path and then taken out of the table of modules; their importers keep them. A folder without an `__init__.py` is
no package of its own to Python: its modules are found in ours, which look for such folders (`pkgutil.extend_path`).
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from pkgutil import extend_path
from types import ModuleType

NAMES = ("protos", "rendezvous")
_ROOT = Path(__file__).resolve().parents[2]
_KEPT = f"{__name__}:"  # under this prefix ours wait in the table for the next time


class _OwnFinder(MetaPathFinder):
    """Finds the packages of this project where it is installed, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path
        return PathFinder.find_spec(fullname, [str(_ROOT)], target) if fullname in NAMES else None


@contextmanager
def own_packages() -> Iterator[None]:
    """Within it, `protos` and `rendezvous` are this project's."""
    if not any(_is_taken(name) for name in NAMES):
        yield
        return
    theirs = _take_out()
    for name in [name for name in sys.modules if name.startswith(_KEPT)]:
        sys.modules[name.removeprefix(_KEPT)] = sys.modules.pop(name)
    finder = _OwnFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        hide()
        sys.modules.update(theirs)


def hide() -> None:
    """Take ours out of the table of modules where the user has packages of these names."""
    if any(_is_taken(name) for name in NAMES):
        sys.modules.update({f"{_KEPT}{name}": module for name, module in _take_out().items()})
    for name in sys.modules.keys() & set(NAMES):  # imported before the script's folder was on the search path
        package = sys.modules[name]
        package.__path__ = extend_path(package.__path__, name)


def _is_taken(name: str) -> bool:
    """The search path leads to somebody else's package of this name, or that has been imported."""
    module = sys.modules.get(name)
    if module is not None and not _is_own(getattr(module, "__file__", None)):
        return True
    spec = PathFinder.find_spec(name)
    return spec is not None and not _is_own(spec.origin)


def _is_own(file: str | None) -> bool:
    return file is not None and Path(file).resolve().parent.parent == _ROOT


def _take_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in NAMES}
