"""The memory of a worker's snapshots: a file in memory with two halves for states and a ring for random states.

A record is written in place of an older one: first the header of that is made invalid, then the data are written, then
the header. A header has the checksum of itself and of the description of the data. So a record is complete or absent,
at whatever moment the worker is killed. The data of tensors have no checksum: to compute one takes longer than to copy
them, and nobody else writes there.

More records are kept of random states, which are small: the ranks may be some saves apart. One of them is that of the
save from which the round has begun.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

HALVES = 2
RING = 5
_HEADER_BYTES = 256
_RANDOM_BYTES = 64 * 1024  # each torch.Generator of a program takes 5,500
_RANDOM_AT = 4096
_FIRST_PAGES = _RANDOM_AT + RING * _RANDOM_BYTES
_STATE_AT = 1 << 40  # of the first half; the file is sparse, so each half grows without moving the other
_SPARE_BYTES = 64 * 1024  # a description may grow a little with each save
_LINE_BYTES = 64
_MAGIC = b"hvdsnap1"


class Key(NamedTuple):
    """Which save: the round in which it was done, and its number, which continues after a restore."""

    round: int
    number: int


NOWHERE = Key(-1, 0)  # the origin of a training that has restored nothing


@dataclass(frozen=True, slots=True)
class Record:
    """What a header says.

    origin: the save that this round has restored.
    layout: a hash of the names, dtypes and shapes; of random states a measure of what the rank trains (see `trained`).
    description_bytes, data_bytes: how long the two parts of the record are.
    rank, size: of the worker that has written it.
    """

    key: Key
    origin: Key
    rank: int
    size: int
    layout: bytes = b""
    description_bytes: int = 0
    data_bytes: int = 0
    checksum: int = 0

    _FORM = struct.Struct("<8s4q2i16s2qI")

    def encode(self) -> bytes:
        """The header."""
        numbers = (*self.key, *self.origin, self.rank, self.size)
        lengths = (self.description_bytes, self.data_bytes, self.checksum)
        body = self._FORM.pack(_MAGIC, *numbers, self.layout, *lengths)
        return (body + zlib.crc32(body).to_bytes(4, "little")).ljust(_HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, header: bytes) -> Self | None:
        """The record of a header; None where it is not complete."""
        body = header[: cls._FORM.size]
        if header[len(body) :][:4] != zlib.crc32(body).to_bytes(4, "little"):
            return None
        magic, *key, rank, size, layout, description_bytes, data_bytes, checksum = cls._FORM.unpack(body)
        if magic != _MAGIC:
            return None
        return cls(
            Key(*key[:2]), Key(*key[2:]), rank, size, layout.rstrip(b"\0"), description_bytes, data_bytes, checksum
        )


class SnapshotMemory:
    """The memory behind a descriptor, which workers of former rounds have used before.

    A place is the number of a record's header: first those of the halves, then those of the ring.

    Args:
        descriptor: of the file; it stays the caller's.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._grow(0, _FIRST_PAGES)
        self._first = mmap.mmap(descriptor, _FIRST_PAGES)
        self._halves: dict[int, mmap.mmap] = {}
        self._keys = {place: record.key for place, record in self._list(range(HALVES + RING))}  # of complete records

    @property
    def used_bytes(self) -> int:
        """How many bytes of memory the file takes."""
        return os.fstat(self._descriptor).st_blocks * 512

    def list_states(self) -> Iterator[tuple[int, Record]]:
        """The complete states, each with its half."""
        return self._list(range(HALVES))

    def list_random(self) -> Iterator[tuple[Record, bytes]]:
        """The complete random states."""
        for index, record in self._list(range(HALVES, HALVES + RING)):
            start = _find_random(index)
            data = self._first[start : start + record.description_bytes]
            if zlib.crc32(data) == record.checksum:
                yield record, data

    def read_state(self, half: int, record: Record) -> tuple[bytes, mmap.mmap] | None:
        """The description of a complete state, and the mapping in which its data follow; None where it is damaged."""
        start = align(record.data_bytes)
        mapping = self.map_half(half, start + record.description_bytes)
        description = mapping[start : start + record.description_bytes]
        if zlib.crc32(description) != record.checksum:
            return None
        return description, mapping

    def write_random(self, key: Key, origin: Key, rank: int, size: int, data: bytes, *, measure: bytes = b"") -> None:
        """Keep random states, in place of the oldest but those of the origin: the next round may begin there, too.

        Those that are too large are not kept.
        """
        if len(data) > _RANDOM_BYTES:
            return
        index = self.choose(range(HALVES, HALVES + RING), origin)
        start = _find_random(index)
        self._invalidate(index)
        self._first[start : start + len(data)] = data
        checksum = zlib.crc32(data)
        self._complete(index, Record(key, origin, rank, size, measure, len(data), checksum=checksum))

    def write_state(self, half: int, record: Record, description: bytes, copy: Callable[[mmap.mmap], None]) -> None:
        """Keep a state in a half, into which `copy` writes the data.

        Raises:
            OSError: there is no memory.
        """
        self._invalidate(half)
        mapping = self.map_half(half, align(record.data_bytes) + len(description))
        copy(mapping)
        start = align(record.data_bytes)
        mapping[start : start + len(description)] = description
        self._complete(half, replace(record, checksum=zlib.crc32(description)))

    def choose(self, places: range, kept: Key) -> int:
        """The place for the next record: an empty one, or that of the oldest, but not that of `kept`."""
        keys = self._keys
        return min((place for place in places if keys.get(place) != kept), key=lambda place: keys.get(place, NOWHERE))

    def map_half(self, half: int, size: int) -> mmap.mmap:
        """The mapping of a half, which has at least so many bytes.

        Raises:
            OSError: there is no memory.
        """
        mapping = self._halves.get(half)
        if mapping is None or len(mapping) < size:
            size = (size // _SPARE_BYTES + 2) * _SPARE_BYTES
            start = _STATE_AT * (half + 1)
            self._grow(start, size)
            # The former mapping is given back when no tensor stands on it any more.
            mapping = self._halves[half] = mmap.mmap(self._descriptor, size, offset=start)
        return mapping

    def _grow(self, start: int, size: int) -> None:
        """Allocate memory now: if it were missing later, the process would get a signal and no error."""
        os.posix_fallocate(self._descriptor, start, size)

    def _list(self, places: range) -> Iterator[tuple[int, Record]]:
        for place in places:
            record = Record.decode(self._first[place * _HEADER_BYTES : (place + 1) * _HEADER_BYTES])
            if record is not None:
                yield place, record

    def _invalidate(self, place: int) -> None:
        self._keys.pop(place, None)
        self._first[place * _HEADER_BYTES : (place + 1) * _HEADER_BYTES] = bytes(_HEADER_BYTES)

    def _complete(self, place: int, record: Record) -> None:
        self._first[place * _HEADER_BYTES : (place + 1) * _HEADER_BYTES] = record.encode()
        self._keys[place] = record.key


def _find_random(place: int) -> int:
    return _RANDOM_AT + (place - HALVES) * _RANDOM_BYTES


def align(size: int) -> int:
    """The next multiple of the size of a cache line, in bytes."""
    return (size + _LINE_BYTES - 1) // _LINE_BYTES * _LINE_BYTES
