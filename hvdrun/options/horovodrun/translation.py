"""What horovodrun's options mean in hvdrun's table."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hvdrun.options.horovodrun.words import Typed
from hvdrun.options.option import Given
from hvdrun.options.table import BY_DEST


@dataclass(slots=True)
class Translation:
    """What was given to options of hvdrun, by dest, and what to say of options that have no effect; sentences."""

    given: dict[str, Given] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def translate(typed: Iterable[Typed]) -> Translation:
    """Turn options of horovodrun into values of hvdrun's options; of several spellings of one the last holds.

    Raises:
        BadValueError: an option cannot have such a value.
    """
    result = Translation()
    idle: dict[str, list[str]] = {}
    for word, flag, values in typed:
        word.check(flag, values)
        if word.instead:
            flags = idle.setdefault(word.instead, [])
            flags.extend(() if flag in flags else (flag,))
        if word.variable:
            _give(result, "forwarded", (f"{word.variable}={word.value or values[0]}",))
        if word.dest:
            meant = word.read(values)
            if meant is not None:
                _give(result, word.dest, meant)
    result.remarks.extend(
        f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect: {instead}."
        for instead, flags in idle.items()
    )
    return result


def _give(result: Translation, dest: str, value: Given) -> None:
    """Note a value; what may be given several times adds up."""
    former = result.given.get(dest)
    if BY_DEST[dest].repeats and isinstance(former, tuple) and isinstance(value, tuple):
        value = (*former, *value)
    result.given[dest] = value
