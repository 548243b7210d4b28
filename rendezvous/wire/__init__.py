"""What the parties of a job say to each other: plain values, and `codec`, which puts them on the wire."""

from typing import Annotated, TypeAlias, TypeVar

T = TypeVar("T")

Filled: TypeAlias = Annotated[T, "filled"]  # a field of a value that is not accepted when it is empty, or 0
