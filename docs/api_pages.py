"""Shapes the docstrings of the API pages: an extension of griffe, which reads them for mkdocs."""

import re
from typing import Any

import griffe

_PARTS = re.compile(r"\n(?=(?:Message|Cause|Remedy): )")


class ApiPages(griffe.Extension):
    """What users read: the result of a collective and not its arguments, and each part of an error on its own line."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """`worker_runtime.api.calls.collective` makes a function that returns the collective's result."""
        returns = func.returns
        if isinstance(returns, griffe.ExprSubscript) and str(returns.left) == "Arguments":
            func.returns = returns.slice

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """An error has a message, a cause and a remedy."""
        if cls.docstring is not None:
            cls.docstring.value = _PARTS.sub("\n\n", cls.docstring.value)
