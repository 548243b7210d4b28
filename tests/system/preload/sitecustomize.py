"""Puts a small module in place of torch._dynamo, which a first optimizer would import in more than a second.

It has what optimizers, process groups and DDP call where nothing is compiled. For anything else the real one takes its
place.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class EagerModule(ModuleType):
    """A module that becomes the real one as soon as something else is needed of it than this.

    Args:
        name: of the real one.
        known: what it has.
    """

    def __init__(self, name: str, **known: object) -> None:
        super().__init__(name)
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        """Import the real module; not for the names that are asked of every module."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if isinstance(sys.modules.get(NAME), EagerModule):
            del sys.modules[NAME]
        return getattr(importlib.import_module(self.__name__), name)


sys.modules[NAME] = EagerModule(
    NAME,
    disable=lambda function, *_, **__: function,
    graph_break=lambda: None,
    trace_rules=EagerModule(f"{NAME}.trace_rules", clear_lru_cache=lambda: None),
    utils=EagerModule(f"{NAME}.utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
)
