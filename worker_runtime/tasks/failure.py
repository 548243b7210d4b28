"""What a function has raised, written for the program that has sent it."""

import traceback
from dataclasses import dataclass
from typing import IO, Self

import cloudpickle  # type: ignore[import-untyped]  # it ships no types

from worker_runtime.rendezvous import find_unsendable

_OWN_FRAMES = 1  # that of whoever has called the function


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in words.

    kind: the name of its class, as Python prints it; "" for a result that cannot be sent.
    text: its message.
    traceback: as Python prints it.
    pickled: the exception itself; None where it cannot be sent.
    """

    kind: str
    text: str
    traceback: str = ""
    pickled: bytes | None = None

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """That of an exception which was caught where the function was called."""
        shown = error.__traceback__
        for _ in range(_OWN_FRAMES):
            shown = shown and shown.tb_next
        lines = traceback.format_exception(type(error), error, shown)
        return cls(name(error), _describe(error), "".join(lines), _pickle(error))

    def write(self, file: IO[bytes]) -> None:
        """As a plain tuple, which needs no class to be read."""
        cloudpickle.dump((self.kind, self.text, self.traceback, self.pickled), file)


def explain_unsendable(result: object, error: Exception) -> Failure:
    """What is told in place of a result that cannot be pickled."""
    return Failure("", find_unsendable("what the function returned", result, is_sendable) or str(error))


def is_sendable(value: object) -> bool:
    """Whether it can be pickled."""
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return False
    return True


def name(error: BaseException) -> str:
    """The name of an exception's class, as Python prints it."""
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )


def _describe(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return "(its message cannot be printed)"


def _pickle(error: BaseException) -> bytes | None:
    if not isinstance(error, Exception):
        return None  # SystemExit and its like would end the program that gets them
    try:
        pickled: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return None
    return pickled
