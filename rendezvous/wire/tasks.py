"""Tasks: functions that the workers of a job run one after the other, and their outcomes.

Here they are bytes: the program that has written a task and the worker that runs it pickle them. Both call
`find_unsendable` to name the part of a value that cannot be pickled.
"""

import dis
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Protocol

from rendezvous.core.model import Worker
from rendezvous.wire import Filled

PIECE_BYTES = 1024 * 1024  # launcher and agent hold one piece in memory


@dataclass(frozen=True, slots=True)
class OutcomeHead:
    """The head of an outcome, before its bytes.

    number: the number of the task.
    size: the number of its bytes.
    failed: the bytes are an exception, not a result.
    follows_another: the task has failed because another worker had ended.
    """

    worker: Worker
    number: Filled[int]
    size: int
    failed: bool = False
    follows_another: bool = False


class Task(Protocol):
    """One function, in bytes."""

    @property
    def number(self) -> int:
        """Counted from 1, growing."""

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the function, in pieces of at most PIECE_BYTES; each call starts from the first."""


class TaskDispatcher(Protocol):
    """Gives tasks to the workers, and takes the outcomes."""

    async def next(self, after: int) -> Task | None:
        """Wait for a task with a number above `after`; None if no task follows."""

    async def take(self, head: OutcomeHead, pieces: AsyncIterator[bytes]) -> None:
        """Take an outcome. One that was taken before is ignored; one that breaks off does not count."""

    def is_done(self, worker: Worker) -> bool:
        """This worker may exit: no task follows, and the last outcome was taken."""


_DEEPEST = 20


def find_unsendable(name: str, value: object, is_sendable: Callable[[object], bool]) -> str:
    """One sentence, without a full stop, that names the part of a value that cannot be sent.

    Message: FUNCTION cannot be sent to another process: its PART is a TYPE
    Message: the fixture NAME cannot be sent to another process: it is a TYPE
    Cause: A variable of the function, an argument or a fixture cannot be pickled: a lock, an open file, a module.
    Remedy: Create it inside the function.

    name: the name of the value.
    """
    path: list[str] = []
    while len(path) < _DEEPEST:
        part = next(((where, part) for where, part in list_parts(value) if not is_sendable(part)), None)
        if part is None:
            break
        path.append(part[0])
        value = part[1]
    kind = type(value)
    named = kind.__qualname__
    if kind.__module__ != "builtins":
        named = f"{kind.__module__}.{kind.__qualname__}"
    owner = f"its {', '.join(path)}" if path else "it"
    return f"{name} cannot be sent to another process: {owner} is a {named}"


def list_parts(value: object) -> Iterator[tuple[str, object]]:
    """The parts of a value, each with a name."""
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
