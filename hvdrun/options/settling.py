"""What each option's value is: as typed, else as a configuration file says, else the environment, else its default."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from hvdrun.options.option import Given, Option
from hvdrun.options.table import OPTIONS

Part = TypeVar("Part")

_SOURCES_OF_HOSTS = frozenset({"hosts", "hostfile", "script"})  # one typed replaces another one of the file
_ADDED = "forwarded"  # -x adds to the file's; of the same name the typed one holds


@dataclass(frozen=True, slots=True)
class Settled:
    """All options.

    values: by dest; None where nothing gives one. "typed" has the names of those that are typed or in the file.
    given: what was typed, or in the file or the environment, as text.
    """

    values: Mapping[str, Any]
    given: Mapping[str, Given]


def settle(
    typed: Mapping[str, Given],
    filed: Mapping[str, Given],
    environment: Mapping[str, str],
    sources: Mapping[str, str] | None = None,
) -> Settled:
    """Choose each option's value and read it.

    Args:
        typed: what the command line gives, by dest.
        filed: what the configuration file gives.
        environment: of hvdrun.
        sources: what errors call a value of the file, by dest.

    Raises:
        BadValueError: a value cannot be read.
    """
    named = {} if sources is None else sources
    asked = {**_leave_hosts(typed, filed), **typed}
    if isinstance(before := filed.get(_ADDED), tuple) and isinstance(after := typed.get(_ADDED), tuple):
        asked[_ADDED] = (*before, *after)
    values: dict[str, Any] = {"typed": frozenset(asked)}
    given = dict(asked)
    for option in OPTIONS:
        if option.acts:
            continue
        dest = option.dest
        source = option.flags[0] if dest in typed else named.get(dest, option.flags[0])
        if dest not in given and option.environment and (text := environment.get(option.environment)):
            given[dest], source = text, f"${option.environment}"
        values[dest] = _read(option, given.get(dest), source)
    return Settled(values, given)


def _leave_hosts(typed: Mapping[str, Given], filed: Mapping[str, Given]) -> Mapping[str, Given]:
    """The file without its hosts, where hosts are typed."""
    if _SOURCES_OF_HOSTS.isdisjoint(typed):
        return filed
    return {dest: value for dest, value in filed.items() if dest not in _SOURCES_OF_HOSTS}


def _read(option: Option, given: Given | None, source: str) -> object:
    """The value of an option: None where none is given and it has no default; a tuple of all where it repeats."""
    if not option.takes_value:
        return bool(given) is not option.switches_off

    def read(value: object) -> object:
        return tuple(map(read, value)) if isinstance(value, tuple) else option.read(str(value), source)

    if option.repeats:
        return tuple(read(value) for value in given) if isinstance(given, tuple) else ()
    if given is None and option.default is not None:
        given = option.default if option.words == 1 else tuple(option.default.split())
    return None if given is None else read(given)


def choose(kind: type[Part], values: Mapping[str, Any], **others: object) -> Part:
    """A part of a job from the options whose dest is a field of it; others: those fields that take more than that."""
    names = [each.name for each in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    return kind(**({name: values[name] for name in names if values.get(name) is not None} | others))
