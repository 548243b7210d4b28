"""Keeps hvdrun's packages `protos` and `rendezvous` apart from packages of the same names beside the user's script.

Python searches the script's folder first, so hvdrun's `import protos` would find the user's package; and after
hvdrun's import, the user's `import protos` would find hvdrun's. Only where both exist, hvdrun's packages are imported
without the search path, and then removed from `sys.modules`; their importers keep them. The modules of a user's folder
without an `__init__.py` are found in hvdrun's package, whose path includes such folders (`pkgutil.extend_path`).
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
_KEPT = f"{__name__}:"  # the prefix in sys.modules under which hvdrun's modules are kept for the next import


class _OwnFinder(MetaPathFinder):
    """Finds only hvdrun's packages, where hvdrun is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path
        if fullname in NAMES:
            return PathFinder.find_spec(fullname, [str(_ROOT)], target)
        return None


@contextmanager
def own_packages() -> Iterator[None]:
    """A context in which `protos` and `rendezvous` are hvdrun's."""
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
    """Remove hvdrun's packages from `sys.modules` if the user has packages of these names."""
    if any(_is_taken(name) for name in NAMES):
        sys.modules.update({f"{_KEPT}{name}": module for name, module in _take_out().items()})
    # Imported before the script's folder was on the search path.
    for name in sys.modules.keys() & set(NAMES):
        package = sys.modules[name]
        package.__path__ = extend_path(package.__path__, name)


def _is_taken(name: str) -> bool:
    """Whether another package of this name was imported, or is first on the search path."""
    module = sys.modules.get(name)
    if module is not None and not _is_own(getattr(module, "__file__", None)):
        return True
    spec = PathFinder.find_spec(name)
    return spec is not None and not _is_own(spec.origin)


def _is_own(file: str | None) -> bool:
    return file is not None and Path(file).resolve().parent.parent == _ROOT


def _take_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in NAMES}
