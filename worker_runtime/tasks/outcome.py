"""What has become of a function, and how it is written for the program that has sent it."""

import traceback
from dataclasses import dataclass
from typing import IO, Any

import cloudpickle  # type: ignore[import-untyped]  # it ships no types

_OWN_FRAMES = 1  # that of whoever has called the function


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in words.

    kind, text: its class and its message. traceback: as Python prints it.
    pickled: the exception itself; None where it cannot be sent.
    """

    kind: str
    text: str
    traceback: str
    pickled: bytes | None

    def write(self, file: IO[bytes]) -> None:
        """As a plain tuple, which needs no class to be read."""
        cloudpickle.dump((self.kind, self.text, self.traceback, self.pickled), file)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result, or a failure.

    follows_another: it has failed because another worker had ended.
    """

    result: Any = None
    failure: Failure | None = None
    follows_another: bool = False

    def write(self, file: IO[bytes]) -> bool:
        """Write it into an empty file; whether what stands there is a failure, as of a result that cannot be sent."""
        if self.failure is not None:
            self.failure.write(file)
            return True
        try:
            cloudpickle.dump(self.result, file)
        except Exception as error:  # noqa: BLE001 - whatever the result's own code raises
            file.seek(0)
            file.truncate()
            describe_unsendable(self.result, error).write(file)
            return True
        return False


def describe(error: BaseException, *, follows_another: bool) -> Outcome:
    """The outcome of a function that has raised this."""
    shown = error.__traceback__
    for _ in range(_OWN_FRAMES):
        shown = shown and shown.tb_next
    lines = traceback.format_exception(type(error), error, shown)
    return Outcome(
        failure=Failure(name(error), str(error), "".join(lines), _pickle(error)), follows_another=follows_another
    )


def describe_unsendable(result: object, error: Exception) -> Failure:
    """What is told in place of a result that cannot be sent."""
    text = f"what the function returned, a {type(result).__name__}, cannot be sent: {error}"
    return Failure("UnsendableResult", text, "", None)


def name(error: BaseException) -> str:
    """The name of an exception's class, as Python prints it."""
    kind = type(error)
    return (
        kind.__qualname__ if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}.{kind.__qualname__}"
    )


def _pickle(error: BaseException) -> bytes | None:
    if not isinstance(error, Exception):
        return None  # SystemExit and its like would end the program that gets them
    try:
        pickled: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return None
    return pickled
