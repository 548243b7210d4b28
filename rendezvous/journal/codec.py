"""Values of the core as values of JSON, and back: dataclasses by the names of their fields, as their type hints say.

A later version of hvdrun reads what an earlier one has written. So a new field has a default, which is used where the
field is missing. Fields that were removed, and values of enums that were renamed, are listed here.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from rendezvous.core.table import Table

T = TypeVar("T")

# By class: fields that stand in journals of former versions.
REMOVED_FIELDS: dict[str, frozenset[str]] = {}
# By enum: the present value for each one of former versions.
FORMER_VALUES: dict[str, dict[str, str]] = {}

_TAG = "is"  # a keyword of Python, and so the name of no field
_LEAST_RANGE = 4  # integers in a row that are written as a range


class UnknownFieldError(ValueError):
    """A value has a field that this version does not know."""

    def __init__(self, name: str, unknown: frozenset[str]) -> None:
        super().__init__(f"{name} has unknown fields: {', '.join(sorted(unknown))}")


class Codec:
    """Writes and reads the values of one type. This base serves the types that JSON has itself.

    is_ordered: a value contains mappings. Their order counts, and `==` ignores it.
    """

    is_ordered = False

    def encode(self, value: Any) -> Any:
        """The value of JSON for a value of this type."""
        return value

    def decode(self, encoded: Any) -> Any:
        """The value of this type for a value of JSON."""
        return encoded

    def differ(self, former: Any, new: Any) -> bool:
        """The values are not the same, or their mappings have another order."""
        if former is new:
            return False
        if self.is_ordered:
            return bool(self.encode(former) != self.encode(new))
        return bool(former != new)


class BytesCodec(Codec):
    """Bytes, as hexadecimal digits."""

    def encode(self, value: Any) -> Any:
        """The digits."""
        return value.hex()

    def decode(self, encoded: Any) -> Any:
        """The bytes."""
        return bytes.fromhex(encoded)


class EnumCodec(Codec):
    """A member of an enum, as its value.

    Args:
        enum: its class.
    """

    def __init__(self, enum: type[Enum]) -> None:
        self.enum = enum

    def encode(self, value: Any) -> Any:
        """The value of the member."""
        return value.value

    def decode(self, encoded: Any) -> Any:
        """The member with this value, or with the present name of a former one."""
        return self.enum(FORMER_VALUES.get(self.enum.__name__, {}).get(encoded, encoded))


class TupleCodec(Codec):
    """A tuple of any length.

    Args:
        item: of its values.
    """

    def __init__(self, item: Codec) -> None:
        self.item = item
        self.is_ordered = item.is_ordered

    def encode(self, value: Any) -> Any:
        """A list."""
        encode = self.item.encode
        return [encode(each) for each in value]

    def decode(self, encoded: Any) -> Any:
        """The tuple."""
        return tuple(map(self.item.decode, encoded))


class IntegersCodec(Codec):
    """A tuple of integers; a long run, such as all ranks, as its first and its last one."""

    def encode(self, value: Any) -> Any:
        """A list, or the ends of a range."""
        length = len(value)
        if length >= _LEAST_RANGE and value[-1] - value[0] == length - 1 and value == _range(value[0], value[-1]):
            return {"from": value[0], "to": value[-1]}
        return list(value)

    def decode(self, encoded: Any) -> Any:
        """The tuple; equal ranges are one object, since thousands of reports have the same."""
        if isinstance(encoded, dict):
            return _range(encoded["from"], encoded["to"])
        return tuple(encoded)


@lru_cache(64)
def _range(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


class FixedTupleCodec(Codec):
    """A tuple of a fixed length.

    Args:
        items: of its values.
    """

    def __init__(self, items: tuple[Codec, ...]) -> None:
        self.items = items
        self.is_ordered = any(item.is_ordered for item in items)

    def encode(self, value: Any) -> Any:
        """A list."""
        return [item.encode(each) for item, each in zip(self.items, value, strict=True)]

    def decode(self, encoded: Any) -> Any:
        """The tuple."""
        return tuple(item.decode(each) for item, each in zip(self.items, encoded, strict=True))


class SetCodec(Codec):
    """A frozen set.

    Args:
        item: of its values.
    """

    def __init__(self, item: Codec) -> None:
        self.item = item

    def encode(self, value: Any) -> Any:
        """A list, in an order that is the same in each process."""
        return sorted(map(self.item.encode, value), key=repr)

    def decode(self, encoded: Any) -> Any:
        """The set."""
        return frozenset(map(self.item.decode, encoded))


class MappingCodec(Codec):
    """A mapping, as pairs: its order counts, and JSON's keys are strings.

    Args:
        key: of its keys.
        value: of its values.
    """

    is_ordered = True

    def __init__(self, key: Codec, value: Codec) -> None:
        self.key = key
        self.value = value

    def encode(self, value: Any) -> Any:
        """A list of pairs."""
        encode_key, encode = self.key.encode, self.value.encode
        return [[encode_key(key), encode(each)] for key, each in value.items()]

    def decode(self, encoded: Any) -> Any:
        """The mapping."""
        return self.create(self.decode_pairs(encoded))

    def decode_pairs(self, encoded: Any) -> dict[Any, Any]:
        """The entries as a dict."""
        decode_key, decode = self.key.decode, self.value.decode
        return {decode_key(key): decode(each) for key, each in encoded}

    def create(self, entries: dict[Any, Any]) -> Any:
        """The mapping with these entries."""
        return entries


class TableCodec(MappingCodec):
    """A `Table`, as a mapping."""

    def create(self, entries: dict[Any, Any]) -> Any:
        """The table with these entries."""
        return Table.of(entries.items())


class RecordCodec(Codec):
    """A dataclass, as its fields by name.

    Args:
        record: the class.
    """

    def __init__(self, record: type) -> None:
        self.record = record
        hints = get_type_hints(record)
        self.fields = {field.name: find_codec(hints[field.name]) for field in fields(record) if field.init}
        self.is_ordered = any(codec.is_ordered for codec in self.fields.values())
        self._names = tuple(self.fields)
        self._converted = {name: codec for name, codec in self.fields.items() if type(codec) is not Codec}
        self._read = attrgetter(*self._names, "__class__")  # attrgetter of a single name returns no tuple

    def encode(self, value: Any) -> Any:
        """The encoded fields; all of them, so that a default may change."""
        encoded = dict(zip(self._names, self._read(value), strict=False))
        for name, codec in self._converted.items():
            encoded[name] = codec.encode(encoded[name])
        return encoded

    def list_changes(self, former: Any, new: Any) -> list[tuple[str, Any, Any]]:
        """The fields that are other objects: the name, the former value and the new one."""
        triples = zip(self._names, self._read(former), self._read(new), strict=False)
        return [each for each in triples if each[1] is not each[2]]

    def decode(self, encoded: Any) -> Any:
        """The dataclass."""
        values = dict(encoded)
        unknown = values.keys() - self.fields.keys()
        for name in unknown & REMOVED_FIELDS.get(self.record.__name__, frozenset()):
            del values[name]
        if not values.keys() <= self.fields.keys():
            raise UnknownFieldError(self.record.__name__, frozenset(values.keys() - self.fields.keys()))
        for name, codec in self._converted.items():
            if name in values:
                values[name] = codec.decode(values[name])
        return self.record(**values)


class OptionalCodec(Codec):
    """A value or None.

    Args:
        item: of a value.
    """

    def __init__(self, item: Codec) -> None:
        self.item = item
        self.is_ordered = item.is_ordered

    def encode(self, value: Any) -> Any:
        """The encoded value, or None."""
        return None if value is None else self.item.encode(value)

    def decode(self, encoded: Any) -> Any:
        """The value, or None."""
        return None if encoded is None else self.item.decode(encoded)


class UnionCodec(Codec):
    """One of several dataclasses, with the name of its class.

    Args:
        records: of the classes.
    """

    def __init__(self, records: tuple[RecordCodec, ...]) -> None:
        self.records = {each.record.__name__: each for each in records}
        self.is_ordered = any(each.is_ordered for each in records)

    def encode(self, value: Any) -> Any:
        """The fields, and the name."""
        name = type(value).__name__
        return {_TAG: name, **self.records[name].encode(value)}

    def decode(self, encoded: Any) -> Any:
        """The dataclass with that name."""
        return self.records[encoded[_TAG]].decode({name: each for name, each in encoded.items() if name != _TAG})


_PLAIN = frozenset({int, float, str, bool, NoneType})


def find_codec(hint: Any) -> Codec:
    """The codec of a type.

    Raises:
        TypeError: values of this type cannot be written.
    """
    return _find_codec(hint)


@cache  # whose type takes no type variable, as `find_codec` does
def _find_codec(hint: Any) -> Codec:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return Codec()
    if hint is bytes:
        return BytesCodec()
    if origin in {Union, UnionType}:
        return _find_union(arguments)
    if origin is tuple and arguments == (int, ...):
        return IntegersCodec()
    if origin is tuple and arguments[1:] == (...,):
        return TupleCodec(find_codec(arguments[0]))
    if origin is tuple:
        return FixedTupleCodec(tuple(map(find_codec, arguments)))
    if origin is frozenset:
        return SetCodec(find_codec(arguments[0]))
    if origin is Table or origin is Mapping:
        kind = TableCodec if origin is Table else MappingCodec
        return kind(*map(find_codec, arguments))
    return _find_class(hint)


def _find_class(hint: Any) -> Codec:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return EnumCodec(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return RecordCodec(hint)
    raise TypeError(f"values of type {hint} cannot be written into a journal")


def _find_union(hints: tuple[Any, ...]) -> Codec:
    codecs = tuple(find_codec(hint) for hint in hints if hint is not NoneType)
    if all(type(codec) is Codec for codec in codecs):
        return Codec()
    records = tuple(codec for codec in codecs if isinstance(codec, RecordCodec))
    item = codecs[0]
    if len(codecs) > 1:
        if len(records) < len(codecs):
            raise TypeError(f"a union of {hints} cannot be written into a journal")
        item = UnionCodec(records)
    if NoneType in hints:
        return OptionalCodec(item)
    return item


def encode(value: object) -> Any:
    """A dataclass of the core as a value of JSON."""
    return find_codec(type(value)).encode(value)


def decode(kind: type[T], encoded: Any) -> T:
    """The dataclass that `encode` has written.

    Raises:
        UnknownFieldError, KeyError, TypeError, ValueError: it is not of this class, or a later version has written it.
    """
    value: T = find_codec(kind).decode(encoded)
    return value
