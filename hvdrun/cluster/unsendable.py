"""Finds what in a function, an argument or a result cannot be pickled, and says where it is."""

import dis
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType

import cloudpickle  # type: ignore[import-untyped]  # it ships no types

_DEEPEST = 20


def explain(
    function: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object], error: Exception
) -> str:
    """One sentence for a task that cannot be pickled, which `error` says."""
    name = getattr(function, "__name__", type(function).__name__)
    parts: list[tuple[str, object]] = [
        (name, function),
        *((f"the argument {position} of {name}", value) for position, value in enumerate(arguments)),
        *((f"the argument {word!r} of {name}", value) for word, value in keywords.items()),
    ]
    for place, value in parts:
        if not is_sendable(value):
            return f"{find(place, value)}; make it inside the function, or leave it out."
    return f"{name} cannot be sent to the workers: {error}"


def find(place: str, value: object) -> str:
    """Where in a value that cannot be pickled the part is that cannot."""
    path = [place]
    for _ in range(_DEEPEST):
        part = next(((where, part) for where, part in list_parts(value) if not is_sendable(part)), None)
        if part is None:
            break
        path.append(part[0])
        value = part[1]
    kind = type(value)
    named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if len(path) == 1:
        return f"{place} cannot be sent to another process: it is a {named}"
    return f"{place} cannot be sent to another process: its {', '.join(path[1:])} is a {named}"


def is_sendable(value: object) -> bool:
    """Whether it can be pickled."""
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever its own code raises
        return False
    return True


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
