"""The records of a journal: a number, a body, and a checksum over both, so that no fault of a disk goes unnoticed."""

import json
import zlib
from dataclasses import dataclass
from typing import Any, Self

_LEAST_COMPRESSED_BYTES = 4096
_COMPRESSED = b"\x78"  # with which zlib begins, and no value of JSON


class BadRecordError(ValueError):
    """A record does not have the bytes that were written."""


@dataclass(frozen=True, slots=True)
class Record:
    """A value of JSON as it lies in the journal.

    kind: of the table that it is in. name: its number, or a word.
    """

    kind: str
    name: int | str
    body: bytes
    checksum: int

    @classmethod
    def create(cls, kind: str, name: int | str, body: bytes) -> Self:
        """The record of these bytes."""
        return cls(kind, name, body, _check(kind, name, body))

    @classmethod
    def encode(cls, kind: str, name: int | str, value: Any) -> Self:
        """The record of a value of JSON."""
        body = json.dumps(value, separators=(",", ":")).encode()
        if len(body) >= _LEAST_COMPRESSED_BYTES:
            body = zlib.compress(body, 1)
        return cls.create(kind, name, body)

    def check(self) -> bytes:
        """Return the body if its checksum is right.

        Raises:
            BadRecordError: it is wrong.
        """
        # SQLite returns what the row says: a text where a bit of it has changed.
        if type(self.body) is not bytes or self.checksum != _check(self.kind, self.name, self.body):
            raise BadRecordError(f"the checksum of the {self.kind} {self.name} is wrong")
        return self.body

    def decode(self) -> Any:
        """The value of JSON.

        Raises:
            BadRecordError: the body has changed.
        """
        body = self.check()
        if body.startswith(_COMPRESSED):
            body = zlib.decompress(body)
        return json.loads(body)


def _check(kind: str, name: int | str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(f"{kind} {name}".encode()))
