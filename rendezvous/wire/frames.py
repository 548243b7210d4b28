"""A stream of messages, cut into its pieces: each is led by its length."""

import struct
from collections.abc import Iterator

from rendezvous.errors import WireError

_LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 16 * 1024 * 1024


def frame(data: bytes) -> bytes:
    """Length-delimited: four bytes, most significant first, then the message."""
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts a stream of bytes, in whatever chunks it comes, into the frames it is made of."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The frames that are complete with this chunk.

        Raises:
            WireError: a frame is longer than MAX_FRAME_BYTES, so this is not our stream.
        """
        self._pending += chunk
        while len(self._pending) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._pending)
            if length > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self._pending) < end:
                return
            data = bytes(self._pending[_LENGTH.size : end])
            del self._pending[:end]
            yield data
