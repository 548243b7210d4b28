"""Functions that the workers of a job run one after the other: how they are handed out, and what comes back.

Only bytes here: the program that has written a task and the worker that runs it know what they mean. Both pickle, and
ask `find_unsendable` where in a value the part is that no pickle can hold.
"""

import dis
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Protocol

from rendezvous.core.model import Worker
from rendezvous.wire import Filled

PIECE_BYTES = 1024 * 1024  # nothing larger is in memory on the way


@dataclass(frozen=True, slots=True)
class OutcomeHead:
    """What is known of an outcome before its bytes.

    number: of the task.
    size: how many bytes there are.
    failed: the bytes tell of an exception, and not of a result.
    follows_another: the task has failed because another worker had ended.
    """

    worker: Worker
    number: Filled[int]
    size: int
    failed: bool = False
    follows_another: bool = False


class Task(Protocol):
    """One function, in bytes.

    number: from 1, growing.
    """

    @property
    def number(self) -> int:
        """See the class."""

    def pieces(self) -> Iterator[bytes]:
        """Its bytes, none of the pieces larger than PIECE_BYTES; each call begins anew."""


class TaskDesk(Protocol):
    """Hands tasks out to the workers, and takes what has become of them."""

    async def next(self, after: int) -> Task | None:
        """Wait for a task with a number above `after`; None when there will be none."""

    async def take(self, head: OutcomeHead, pieces: AsyncIterator[bytes]) -> None:
        """Take an outcome; one that was taken before is ignored, one that breaks off was not taken."""

    def is_done(self, worker: Worker) -> bool:
        """Whether this worker may end: no task is to come, and the last one's outcome was taken."""


_DEEPEST = 20


def find_unsendable(place: str, value: object, is_sendable: Callable[[object], bool]) -> str:
    """One sentence, without a full stop, for a value that cannot be sent: where in it the part is that cannot.

    place: what the value is called.
    """
    path: list[str] = []
    while len(path) < _DEEPEST:
        part = next(((where, part) for where, part in list_parts(value) if not is_sendable(part)), None)
        if part is None:
            break
        path.append(part[0])
        value = part[1]
    kind = type(value)
    named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    owner = f"its {', '.join(path)}" if path else "it"
    return f"{place} cannot be sent to another process: {owner} is a {named}"


def list_parts(value: object) -> Iterator[tuple[str, object]]:
    """What a value is made of, and what each part is called."""
    match value:
        case FunctionType():
            yield from _list_variables(value)
        case MethodType():
            yield "object", value.__self__
        case functools.partial():
            yield "function", value.func
            yield from ((f"argument {position}", part) for position, part in enumerate(value.args))
            yield from ((f"argument {name!r}", part) for name, part in value.keywords.items())
        case dict():
            yield from ((f"item {key!r}", part) for key, part in value.items())
        case list() | tuple() | set() | frozenset():
            yield from ((f"item {position}", part) for position, part in enumerate(value))
        case _:
            yield from ((f"attribute `{name}`", part) for name, part in getattr(value, "__dict__", {}).items())


def _list_variables(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"variable `{name}`", cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for name in sorted(_list_globals(function.__code__)):
        if name in function.__globals__:
            yield f"global variable `{name}`", function.__globals__[name]
    yield from ((f"default {position}", value) for position, value in enumerate(function.__defaults__ or ()))
    yield from ((f"default of `{name}`", value) for name, value in (function.__kwdefaults__ or {}).items())
    yield from ((f"attribute `{name}`", value) for name, value in vars(function).items())


def _list_globals(code: CodeType) -> set[str]:
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_list_globals(part) for part in code.co_consts if isinstance(part, CodeType)))
