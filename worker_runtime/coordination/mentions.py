"""An operation that is spoken of between a rank and the sequencer without being asked for, so that it has no number."""

import struct
from typing import NamedTuple, Self

from worker_runtime.coordination.wire import ProtocolError

_HEAD = struct.Struct("<HH")  # set, and bytes of the name


class Mention(NamedTuple):
    """What is said of an operation.

    process_set: its set.
    name: as it travels.
    text: an error, or a signature's note.
    """

    process_set: int
    name: str
    text: str

    def encode(self) -> bytes:
        """The body of a GIVE_UP or a WANTED.

        Raises:
            ValueError: the name cannot be sent; no operation can have it.
        """
        name = self.name.encode()
        try:
            head = _HEAD.pack(self.process_set, len(name))
        except struct.error:
            raise ValueError(f"a name of {len(name)} bytes is too long") from None
        return head + name + self.text.encode(errors="backslashreplace")

    @classmethod
    def decode(cls, body: memoryview) -> Self:
        """The mention of such a body; of a text that was cut off in the middle of a character as much as there is.

        Raises:
            ProtocolError: it is none.
        """
        try:
            process_set, length = _HEAD.unpack_from(body)
            if len(body) < _HEAD.size + length:
                raise ProtocolError("the mention of an operation is cut off")
            end = _HEAD.size + length
            return cls(process_set, str(body[_HEAD.size : end], "utf-8"), str(body[end:], "utf-8", "replace"))
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError(f"the mention of an operation was expected: {error}") from None
