"""Makes one line of each traceback of KeyboardInterrupt in a stream: after a Ctrl-C every worker has one.

The line says where the program stood: in the last frame that is neither Python's, nor an installed package's, nor ours.
With an interrupt's traceback go those of the errors that were being handled when it came, which Python prints before
it. An error that came while the interrupt was handled stays, without the sentence that joins the two.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

_BEGINNING = b"Traceback (most recent call last):"
_INTERRUPT = b"KeyboardInterrupt"
# Each stands between two empty lines.
_JOINTS = frozenset(
    {
        b"During handling of the above exception, another exception occurred:",
        b"The above exception was the direct cause of the following exception:",
    }
)
_JOINT_LINES = 3
_FRAME = re.compile(rb'  File "(.+)", line (\d+), in (.+)')
_NOT_THE_PROGRAM_S = re.compile(rb"^<frozen|/lib/python3|/worker_runtime/|/rendezvous/client/|/hvdrun/shim/")


class InterruptFilter:
    """Of one stream, line by line; a traceback, and what joins it to the next, is held back until it is known of what.

    What is held back is whole tracebacks with their joints, and the beginning of one more of either.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._is_within = False  # a traceback; its last line tells what it is of
        self._has_left_out = False  # an interrupt's, and what comes now may be joined to it

    def feed(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Of these lines, and what was held back, all that is to be shown now."""
        for line in lines:
            if self._is_within and line.startswith(_INTERRUPT):
                yield from _find_place(self._held)
                self._held.clear()
                self._is_within, self._has_left_out = False, True
            elif self._continues(line):
                self._hold(line)
            else:
                yield from self.finish()
                if line.startswith(_BEGINNING) or not line.strip():
                    self._hold(line)
                else:
                    self._has_left_out = False
                    yield line

    def finish(self) -> list[bytes]:
        """Nothing follows: what was held back is shown."""
        held, self._held = self._held, []
        self._is_within = False
        return held

    def _continues(self, line: bytes) -> bool:
        """Whether Python would have printed this after what is held back, on its way to an interrupt."""
        if self._is_within:
            return not line.startswith(_BEGINNING)
        before, last = [b"", b"", *(each.strip() for each in self._held[-2:])][-2:]
        if line.startswith(_BEGINNING):
            return before in _JOINTS and not last
        if not line.strip():
            return bool(last)
        return bool(self._held) and not last and line.strip() in _JOINTS

    def _hold(self, line: bytes) -> None:
        self._held.append(line)
        if line.startswith(_BEGINNING):
            self._is_within, self._has_left_out = True, False
        elif self._is_within and not line.startswith(b" "):
            self._is_within = False
        elif self._has_left_out and len(self._held) == _JOINT_LINES:
            self._held.clear()


def _find_place(traceback: Sequence[bytes]) -> Iterator[bytes]:
    """The line that says where the program stood; none where the traceback has no frame."""
    frames = [(match, code) for line, code in pairwise([*traceback, b""]) if (match := _FRAME.match(line))]
    for match, code in [each for each in frames if not _NOT_THE_PROGRAM_S.search(each[0][1])][-1:] or frames[-1:]:
        text = b"" if _FRAME.match(code) else code.strip()
        yield b"interrupted at %b:%b, in %b%b%b\n" % (*match.groups(), b": " * bool(text), text)
