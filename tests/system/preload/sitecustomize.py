"""Puts a small module in place of torch._dynamo, which a first optimizer would import in more than a second.

What is not compiled calls two functions of it, which do nothing then. For anything else the real one takes its place.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class EagerDynamo(ModuleType):
    """What an optimizer that is not compiled needs of torch._dynamo."""

    def disable(self, function: Any, *_: object, **__: object) -> Any:
        """Return the function itself, which nothing compiles."""
        return function

    def graph_break(self) -> None:
        """Do nothing, since there is no graph."""

    def __getattr__(self, name: str) -> Any:
        """Import the real module; not for the names that are asked of every module."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)


sys.modules[NAME] = EagerDynamo(NAME)
