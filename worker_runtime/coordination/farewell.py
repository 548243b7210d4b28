"""What a rank says to the sequencer when it leaves, and what the others are told of it."""

from typing import NamedTuple, Self


class Farewell(NamedTuple):
    """The body of a LEAVE, END or EXIT.

    reason: why the others cannot go on; "" where they can.
    how: the rank's process ends: "ended (ValueError: no such luck)"; "" where only `shutdown()` was called.
    """

    reason: str = ""
    how: str = ""

    def encode(self) -> bytes:
        """Its bytes."""
        text = f"{self.reason}\0{self.how}" if self.how else self.reason
        return text.encode(errors="backslashreplace")

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """The farewell of such a body, also of one that was cut off."""
        reason, _, how = body.decode(errors="replace").partition("\0")
        return cls(reason, how)
