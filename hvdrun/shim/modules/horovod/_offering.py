"""Fills a module of the shim with what `worker_runtime` has of the names in its table.

A table says where each name comes from: {module: its names}. What this version does not have is left out, so that a
program fails at the name that it needs, in Python's own words, and not at the first import; the tests see to it that
nothing is left out.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

_RUNTIME = "worker_runtime"
_NEEDED = {
    "hvdrun": "has no hvdrun, which serves it: install hvdrun there",
    _RUNTIME: "has no hvdrun, which serves it: install hvdrun there",
    "torch": "has no PyTorch: install torch there",
}


def offer(namespace: "dict[str, Any]", table: "Mapping[str, Sequence[str]]") -> None:
    """Put the names of the table into a module's namespace, and those that are public into its `__all__`.

    Raises:
        ImportError: this Python lacks hvdrun or PyTorch, or these cannot be imported.
    """
    found = {}
    for source, names in table.items():
        module = find_module(source, str(namespace["__name__"]))
        found.update({name: getattr(module, name) for name in names if hasattr(module, name)})
    namespace.update(found)
    public = [name for name in found if not name.startswith("_")]
    namespace["__all__"] = [*namespace.get("__all__", ()), *public]


def offer_rest(namespace: "dict[str, Any]", source: str) -> None:
    """Offer what else a module of the runtime has in its `__all__`; what that imports late is imported late here, too.

    Raises:
        ImportError: as `offer`.
    """
    module = find_module(source, str(namespace["__name__"]))
    rest = [name for name in getattr(module, "__all__", ()) if name not in namespace]
    late = [name for name in rest if name not in vars(module)]
    offer(namespace, {source: [name for name in rest if name not in late]})

    def find_late(name: str) -> "Any":  # noqa: ANN401 - whatever the runtime has
        if name in late:
            return getattr(module, name)
        raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")

    namespace["__all__"] += late
    namespace["__getattr__"] = find_late


def find_module(source: str, asker: str) -> "ModuleType | None":
    """A module of the runtime; None where this version has no such module.

    Raises:
        ImportError: this Python lacks hvdrun or PyTorch, which `asker` needs, or these cannot be imported.
    """
    try:
        return import_module(source)
    except ModuleNotFoundError as error:
        if error.name in _NEEDED:
            message = f"{asker} cannot be imported: {sys.executable} {_NEEDED[error.name]}"
            raise ImportError(message, name=asker) from error
        if error.name is not None and f"{source}.".startswith(f"{error.name}."):
            return None
        raise
