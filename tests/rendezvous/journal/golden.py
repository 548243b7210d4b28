"""Writes journals and the schema of this version into golden/VERSION, for later versions to read.

Once for each release, and while a version is in the making as often as its states change:

    python -m tests.rendezvous.journal.golden
"""

import json
import shutil
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from hvdrun.version import __version__
from rendezvous.core.lifecycle import Phase
from rendezvous.core.state import State
from rendezvous.journal.ballast import Ballast
from rendezvous.journal.codec import (
    EnumCodec,
    FixedTupleCodec,
    MappingCodec,
    OptionalCodec,
    RecordCodec,
    SetCodec,
    TupleCodec,
    UnionCodec,
    encode,
    find_codec,
)
from tests.rendezvous.core.histories import KINDS
from tests.rendezvous.journal.reading import opened, write
from tests.rendezvous.journal.states import list_states

GOLDEN = Path(__file__).with_name("golden")
_SEEDS = 20  # of each kind of history: the richest is kept


def describe(hint: Any) -> dict[str, list[str]]:
    """The names of the fields of each dataclass that values of this type contain, and the values of each enum."""
    described = {}
    for name, kind in list_types(hint).items():
        if issubclass(kind, Enum):
            described[name] = [member.value for member in kind]
        else:
            described[name] = [field.name for field in fields(kind)]
    return described


def list_types(hint: Any) -> dict[str, Any]:
    """The dataclasses and enums that values of this type contain, by name."""
    types: dict[str, Any] = {}
    rest = [find_codec(hint)]
    while rest:
        match rest.pop():
            case RecordCodec(record=record, fields=each):
                types[record.__name__] = record
                rest += each.values()
            case EnumCodec(enum=enum):
                types[enum.__name__] = enum
            case UnionCodec(records=records):
                rest += records.values()
            case MappingCodec(key=key, value=value):
                rest += [key, value]
            case FixedTupleCodec(items=items):
                rest += items
            case TupleCodec(item=item) | SetCodec(item=item) | OptionalCodec(item=item):
                rest.append(item)
            case _:
                pass
    return types


def count_given(state: State) -> int:
    """How many fields differ from those of a job that begins."""
    empty = encode(State(state.policy))
    return sum(value != empty[name] for name, value in encode(state).items())


def find_rich(kind: int) -> list[State]:
    """The states of a history of this kind, up to the one that says most while the job runs."""
    best: list[State] = []
    for seed in range(kind, len(KINDS) * _SEEDS, len(KINDS)):
        states = [state for state in list_states(seed) if state.phase is not Phase.FINISHED]
        place = max(range(len(states)), key=lambda number: count_given(states[number]))
        if not best or count_given(states[place]) > count_given(best[-1]):
            best = states[: place + 1]
    return best


def main() -> None:
    """Write them."""
    folder = GOLDEN / __version__
    shutil.rmtree(folder, ignore_errors=True)
    for kind in sorted({KINDS.index(each) for each in KINDS}):
        with opened(folder / str(kind)) as journal:
            write(journal, *find_rich(kind))
            journal.put("secret", b"of a job")
        Ballast(folder / str(kind) / "journal.ballast").release()
    schema = json.dumps(describe(State), indent=1, sort_keys=True)
    (folder / "schema.json").write_text(f"{schema}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
