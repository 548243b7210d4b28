"""What a random training has come to, and the errors of its operations."""

from dataclasses import dataclass, field

import torch

SUPERSEDED = "superseded"
NO_SKIP = "no skip"  # of a step that Adasum combines
ELSEWHERE = "elsewhere"


class UserError(Exception):
    """A mistake of the program itself."""


class RefusedError(RuntimeError):
    """What one process says for an operation that ranks may refuse."""


@dataclass
class Outcome:
    """What a program has come to.

    parameters: after each operation.
    failures: the failures of the operations that have any.
    losses: what steps with closures have returned, not a number for None; in one process that of each rank.
    """

    parameters: list[torch.Tensor] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    losses: dict[int, list[float]] = field(default_factory=dict)
