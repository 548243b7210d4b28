"""What changes from one value of the core to the next: `apply(difference(a, b), a) == b`, the order of mappings too.

A difference is a value of JSON: a list with the one new value; or, for a dataclass, the differences of its fields by
name; or, for a mapping, what is removed, changed and added. Values share what has not changed, and only the rest is
visited: a join in a job of thousands costs as much as in a small one.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from rendezvous.core.table import Table
from rendezvous.journal.codec import Codec, MappingCodec, OptionalCodec, RecordCodec, TableCodec, find_codec

T = TypeVar("T")

_REMOVED, _CHANGED, _ADDED = "-", "~", "+"
_FEW = 8  # so many entries are written whole: their difference would be no shorter


def difference(former: T, new: T) -> Any:
    """What `apply` needs to make the new value of the former one; None if they are equal."""
    return _find(find_codec(type(former)), former, new)


def apply(changes: Any, former: T) -> T:
    """The former value with these changes.

    Raises:
        LookupError, TypeError, ValueError: the changes do not belong to this value.
    """
    value: T = _apply(find_codec(type(former)), changes, former)
    return value


def _find(codec: Codec, former: Any, new: Any) -> Any:
    if former is new:
        return None
    match codec:
        case OptionalCodec(item=item) if former is not None and new is not None:
            return _find(item, former, new)
        case RecordCodec(fields=fields):
            changes = {}
            for name, before, after in codec.list_changes(former, new):
                change = _find(fields[name], before, after)
                if change is not None:
                    changes[name] = change
            return changes or None
        case TableCodec(value=value) if new.has_keys_of(former):
            changed = [(key, _find(value, former[key], each)) for key, each in new.list_changes(former)]
            return _join(codec, [], changed, {})
        case MappingCodec() if codec.differ(former, new):
            return _find_entries(codec, former, new)
        case _ if codec.differ(former, new):
            return [codec.encode(new)]
        case _:
            return None


def _find_entries(codec: MappingCodec, former: Any, new: Any) -> Any:
    """The difference of two mappings; the whole new one where it is small, or where former keys have moved."""
    removed = [key for key in former if key not in new]
    added = {key: value for key, value in new.items() if key not in former}
    order = [key for key in former if key in new]
    if len(new) <= _FEW or [*order, *added] != list(new):
        return [codec.encode(new)]
    changed = [(key, _find(codec.value, former[key], new[key])) for key in order]
    return _join(codec, removed, changed, added)


def _join(codec: MappingCodec, removed: list[Any], changed: list[tuple[Any, Any]], added: Mapping[Any, Any]) -> Any:
    encode = codec.key.encode
    parts = {
        _REMOVED: [encode(key) for key in removed],
        _CHANGED: [[encode(key), change] for key, change in changed if change is not None],
        _ADDED: [[encode(key), codec.value.encode(value)] for key, value in added.items()],
    }
    return {name: part for name, part in parts.items() if part} or None


def _apply(codec: Codec, changes: Any, former: Any) -> Any:
    if changes is None:
        return former
    if isinstance(changes, list):
        (encoded,) = changes
        return codec.decode(encoded)
    match codec:
        case OptionalCodec(item=item) if former is not None:
            return _apply(item, changes, former)
        case RecordCodec(fields=fields):
            changed = {name: _apply(fields[name], each, getattr(former, name)) for name, each in changes.items()}
            return replace(former, **changed)
        case MappingCodec():
            return _apply_entries(codec, changes, former)
        case _:
            raise TypeError(f"{changes!r} is no difference to {former!r}")


def _apply_entries(codec: MappingCodec, changes: Any, former: Any) -> Any:
    changed = [(codec.key.decode(key), change) for key, change in changes.get(_CHANGED, ())]
    if isinstance(former, Table) and changes.keys() == {_CHANGED}:
        for key, change in changed:
            former = former.replace(key, _apply(codec.value, change, former[key]))
        return former
    entries = dict(former.items())
    for key in changes.get(_REMOVED, ()):
        del entries[codec.key.decode(key)]
    for key, change in changed:
        entries[key] = _apply(codec.value, change, entries[key])
    entries.update(codec.decode_pairs(changes.get(_ADDED, ())))
    return codec.create(entries)
