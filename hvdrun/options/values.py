"""Each option's value: from the command line, else the configuration file, else the environment, else its default."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from hvdrun.options.option import Option, RawValues
from hvdrun.options.table import OPTIONS

Part = TypeVar("Part")

# One of these on the command line replaces all of them in the file.
_ALTERNATIVES = (frozenset({"hosts", "hostfile", "script"}), frozenset({"verbose", "log_level"}))
_ADDED = "forwarded"  # -x adds to the file's variables; of two values for a name the one on the command line counts


@dataclass(frozen=True, slots=True)
class Resolved:
    """The values of all options.

    values: the value of each dest; None where nothing gives one. "typed": dests of the command line and the file.
    given: the same as text, without the defaults.
    """

    values: Mapping[str, Any]
    given: Mapping[str, RawValues]


def resolve(
    typed: Mapping[str, RawValues],
    filed: Mapping[str, RawValues],
    environment: Mapping[str, str],
    sources: Mapping[str, str] | None = None,
) -> Resolved:
    """Choose each option's value and read it.

    Args:
        typed: the values on the command line, by dest.
        filed: the values of the configuration file.
        environment: the environment of hvdrun.
        sources: by dest, how errors call a value of the file.

    Raises:
        UsageError: a value cannot be read.
    """
    if sources is None:
        sources = {}

    replaced = {dest for each in _ALTERNATIVES if not each.isdisjoint(typed) for dest in each}
    kept = {dest: value for dest, value in filed.items() if dest not in replaced}
    asked = {**kept, **typed}
    if isinstance(before := filed.get(_ADDED), tuple) and isinstance(after := typed.get(_ADDED), tuple):
        asked[_ADDED] = (*before, *after)

    values: dict[str, Any] = {"typed": frozenset(asked)}
    given = dict(asked)
    for option in OPTIONS:
        if option.acts:
            continue
        dest = option.dest
        if dest in typed:
            source = option.flags[0]
        else:
            source = sources.get(dest, option.flags[0])
        if dest not in given and option.environment and (text := environment.get(option.environment)):
            given[dest], source = text, f"${option.environment}"
        values[dest] = _read(option, given.get(dest), source)
    return Resolved(values, given)


def _read(option: Option, given: RawValues | None, source: str) -> object:
    """The value of an option: None without a value and a default; a tuple of all values where it repeats."""
    if not option.takes_value:
        return bool(given) is not option.switches_off

    def read(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(read, value))
        return option.read(str(value), source)

    if option.repeats:
        if isinstance(given, tuple):
            return tuple(read(value) for value in given)
        return ()
    if given is None and option.default is not None:
        if option.words == 1:
            given = option.default
        else:
            given = tuple(option.default.split())
    if given is None:
        return None
    return read(given)


def fill(part: type[Part], values: Mapping[str, Any], **others: object) -> Part:
    """Create a part of a job: each option gives the field that its dest names; `others` are the remaining fields."""
    names = [each.name for each in fields(part)]  # type: ignore[arg-type]  # a dataclass
    return part(**({name: values[name] for name in names if values.get(name) is not None} | others))
