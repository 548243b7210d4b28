"""The messages between launcher, agents and workers: dataclasses, and `codec`, which encodes them."""

from typing import Annotated, TypeAlias, TypeVar

T = TypeVar("T")

Filled: TypeAlias = Annotated[T, "filled"]  # a field that must not be empty, or 0
