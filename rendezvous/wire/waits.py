"""What a sequencer writes to its agent about ranks that wait for others, one line of JSON; the launcher reads it.

`worker_runtime/coordination/sequencer/waits.py` writes it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(rb'(\{"waits": .*\})\s*$')  # output of imports may come before it


@dataclass(frozen=True, slots=True)
class AwaitedOperation:
    """An operation that some ranks have asked for, and others have not.

    name: "allreduce 'loss'". seconds: how long it waits. asked, missing: the ranks, in order.
    """

    name: str
    seconds: float
    asked: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """For whom the ranks of a generation wait.

    generation: its number. operations: that have waited long, the oldest first; none when the wait has ended.
    blocked: the ranks that wait themselves.
    is_hang: nothing has happened for as long as `--hang-timeout` says.
    """

    generation: int
    operations: tuple[AwaitedOperation, ...] = ()
    blocked: tuple[int, ...] = ()
    is_hang: bool = False

    @property
    def waiting(self) -> frozenset[int]:
        """The ranks that wait for others."""
        return frozenset(rank for operation in self.operations for rank in operation.asked)

    @property
    def missing(self) -> frozenset[int]:
        """The ranks that are waited for."""
        return frozenset(rank for operation in self.operations for rank in operation.missing)

    @classmethod
    def decode(cls, text: str) -> "Waits":
        """The value of a line, in which ranks are runs.

        Raises:
            ValueError, KeyError, TypeError: the line is malformed.
        """
        fields: dict[str, Any] = json.loads(text)
        operations = [
            AwaitedOperation(str(name), float(seconds), _decode_ranks(asked), _decode_ranks(missing))
            for name, seconds, asked, missing in fields["operations"]
        ]
        return cls(int(fields["waits"]), tuple(operations), _decode_ranks(fields["blocked"]), bool(fields["is_hang"]))


def find_line(output: bytes) -> str | None:
    """The text of a line about waits; None for another line."""
    match = _LINE.search(output)
    return None if match is None else match[1].decode()


def _decode_ranks(runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(rank for first, last in runs for rank in range(first, last + 1))
