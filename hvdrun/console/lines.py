"""The lines of one worker's stream: cut from its bytes, without tracebacks of interrupts, and the last of them kept."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

MAX_LINE_BYTES = 1024 * 1024


class LineSplitter:
    r"""One stream's unfinished line, and what it takes to finish it.

    A line ends with `\n`, `\r\n` or `\r`: progress bars come piece by piece. A `\r` at the end of the known bytes waits
    for the next byte, which may be its `\n`. A line longer than `max_line_bytes` is cut there, a newline added, so that
    a worker that never ends its line cannot fill the launcher's memory.

    Args:
        max_line_bytes: the length of the longest line that stays whole.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._parts: list[bytes] = []  # the unfinished line, not joined until it ends: joining each time is quadratic
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream; return the lines that are now complete, each with its line end."""
        if not data:
            return []

        may_end = b"\n" in data or b"\r" in data or bool(self._parts and self._parts[-1].endswith(b"\r"))
        self._parts.append(data)
        self._size += len(data)
        if not may_end and self._size <= self._max_line_bytes:
            return []

        *lines, last = b"".join(self._parts).splitlines(keepends=True)
        if self._size > self._max_line_bytes:
            lines = [piece for line in lines for piece in self._cut(line)]
            *pieces, last = self._cut(last)
            lines.extend(pieces)
        if last.endswith(b"\n"):
            lines.append(last)
            last = b""

        self._parts = []
        if last:
            self._parts = [last]
        self._size = len(last)
        return lines

    @property
    def is_inside_a_line(self) -> bool:
        """A line has begun."""
        return bool(self._parts)

    @property
    def unfinished(self) -> bytes:
        r"""The line that has begun; without a last `\r`, which may belong to its end."""
        return b"".join(self._parts).removesuffix(b"\r")

    def finish(self) -> list[bytes]:
        """End the stream; return its last line, with a newline added, where it had none."""
        rest = b"".join(self._parts)
        self._parts = []
        self._size = 0
        if rest:
            return [rest + b"\n"]
        return []

    def _cut(self, line: bytes) -> list[bytes]:
        """Cut a line whose text is too long; the line end belongs to the last piece."""
        size = self._max_line_bytes
        length = len(line.rstrip(b"\r\n"))
        if length <= size:
            return [line]
        cuts = range(0, length, size)
        pieces = [line[start : start + size] + b"\n" for start in cuts[:-1]]
        return [*pieces, line[cuts[-1] :]]


TAIL_LINES = 10
HEAD_LINES = 12  # of the traceback in which the last lines are: its first frames are the program's own
_KEPT_LINES = 60  # of which the last TAIL_LINES are shown: lines of a crash that say nothing are left out
_LINE_BYTES = 2000  # more of one line is not read on the page
_TRACEBACK = b"Traceback (most recent call last):"
# What stands before the lines of a traceback: torch.distributed's mark of the rank, Python's margin of a group.
_MARGIN = re.compile(rb"(?:\[rank\d+\]: ?)?(?: *[|+] (?:Exception Group )?)?")
_FRAME_LINES = 3  # its place, its code, and the marks below that
_LEFT_OUT = b"  ...\n"
_EXTENSIONS = b"Extension modules: "  # faulthandler names all that are loaded
_THREAD, _THREAD_END = b"Thread 0x", b"(most recent call first):"  # not "Current thread", which crashed
_OWN_FRAME = re.compile(rb'  File "[^"]*/(?:worker_runtime|rendezvous/client)/')


class Line(NamedTuple):
    """A line, and its place among those of both streams."""

    number: int
    text: bytes


class Tail:
    """The last lines of one stream, and of the last traceback the first lines, the last frame and the exception.

    Of a traceback that Python joins to others, the first of them is kept as well: it is of the error that came first.

    Args:
        numbers: counts the lines of both streams.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._last: deque[Line] = deque(maxlen=_KEPT_LINES)
        self._traceback = _Traceback()
        self._cause: _Traceback | None = None
        self._between = 0  # lines of other tracebacks between that one and the last

    def add(self, lines: Sequence[bytes]) -> None:
        """Keep the last of these lines; of a progress bar only its last form.

        Of a flood of lines only the last are looked at: it is the event loop that waits meanwhile.
        """
        self._note_traceback(lines)
        if self._last and self._last[-1].text.endswith(b"\r"):
            self._last.pop()
        lasting = (line for line in reversed(lines[:-1]) if not line.endswith(b"\r"))
        for line in reversed([lines[-1], *islice(lasting, _KEPT_LINES - 1)]):
            self._last.append(Line(next(self._numbers), _cut(line)))

    def list_lines(self) -> Iterator[Line]:
        """The last lines and the last traceback, in the order in which they came."""
        shown = _leave_out_noise(list(self._last))[-TAIL_LINES:]
        if shown:
            since = len(self._last) - self._last.index(shown[0])
            end = self._traceback.length - since
            if self._cause is not None:
                for line in self._cause.list_lines(self._cause.length + self._between + min(end, 0)):
                    yield Line(shown[0].number, line)
            for line in self._traceback.list_lines(end):
                yield Line(shown[0].number, line)
        yield from shown

    def _note_traceback(self, lines: Sequence[bytes]) -> None:
        begin = 0
        for index, line in enumerate(lines):
            if begins_traceback(line):
                self._continue_traceback(lines[begin:index])
                if not self._traceback.keep_joint():
                    self._cause = None
                elif self._cause is None:
                    self._cause, self._between = self._traceback, 0
                else:
                    self._between += self._traceback.length
                self._traceback = _Traceback()
                begin = index
        self._continue_traceback(lines[begin:])

    def _continue_traceback(self, lines: Sequence[bytes]) -> None:
        if self._traceback.length or (lines and begins_traceback(lines[0])):
            self._traceback.add(lines)


class _Traceback:
    """What is kept of a traceback: its first lines, its last frame, and its exception.

    length: lines since its beginning, also those that came after its end.
    """

    def __init__(self) -> None:
        self.length = 0
        self._head: dict[int, bytes] = {}
        self._frame: dict[int, bytes] = {}
        self._has_ended = False  # with the line of the exception
        self._newest: deque[bytes] = deque(maxlen=JOINT_LINES)

    def add(self, lines: Sequence[bytes]) -> None:
        """Take the next lines."""
        for index, line in enumerate(lines, self.length):
            if self._has_ended:
                break
            text = strip_margin(line)
            self._has_ended = index > 0 and ends_traceback(text)
            if len(self._head) < HEAD_LINES:
                self._head[index] = _cut(line)
            if text.startswith(b'  File "'):
                self._frame = {}
            if self._has_ended or len(self._frame) < _FRAME_LINES:
                self._frame[index] = _cut(line)
        self.length += len(lines)
        self._newest.extend(lines[-JOINT_LINES:])

    def keep_joint(self) -> bool:
        """Keep the newest lines if Python has joined this traceback to the next one by them; return whether it has."""
        texts = [strip_margin(line).strip() for line in self._newest]
        is_joined = self._has_ended and len(texts) == JOINT_LINES and texts[1] in JOINTS and not (texts[0] or texts[2])
        if is_joined:
            self._frame |= enumerate(self._newest, self.length - JOINT_LINES)
        return is_joined

    def list_lines(self, end: int) -> Iterator[bytes]:
        """What is kept of its first `end` lines, with a mark where some are left out."""
        lines = self._head | self._frame
        expected = 0
        for index in sorted(index for index in lines if index < end):
            if index > expected:
                yield _LEFT_OUT
            yield lines[index]
            expected = index + 1
        if expected < end:
            yield _LEFT_OUT


def _leave_out_noise(lines: Sequence[Line]) -> list[Line]:
    """Without what faulthandler writes about hvdrun's own threads, and its list of extension modules."""
    shown: list[Line] = []
    index = 0
    while index < len(lines):
        end = index + 1
        if lines[index].text.startswith(_THREAD) and lines[index].text.rstrip().endswith(_THREAD_END):
            while end < len(lines) and lines[end].text.startswith(b"  File "):
                end += 1
        if _is_own_thread([line.text for line in lines[index + 1 : end]]):
            end += end < len(lines) and not lines[end].text.strip()
        elif not lines[index].text.startswith(_EXTENSIONS):
            shown += lines[index:end]
        index = end
    return shown


def _is_own_thread(frames: Sequence[bytes]) -> bool:
    """Whether threading started it with a function of hvdrun; the last frame called the others."""
    called = [frame for frame in frames if b"/threading.py" not in frame]
    return len(called) < len(frames) and bool(called) and _OWN_FRAME.match(called[-1]) is not None


def begins_traceback(line: bytes) -> bool:
    """Whether this is the first line of a traceback."""
    return _TRACEBACK in line and strip_margin(line).startswith(_TRACEBACK)


def find_traceback(lines: Sequence[bytes], since: int) -> int | None:
    """The index of the first of these lines that begins a traceback; None where none does."""
    if _TRACEBACK not in b"".join(lines):  # one search costs less than one for each line
        return None
    return next((index for index in range(since, len(lines)) if begins_traceback(lines[index])), None)


def ends_traceback(text: bytes) -> bool:
    """Whether this line after a traceback's first, without its margin, is the exception's."""
    return bool(text.strip()) and not text.startswith(b" ")


def strip_margin(line: bytes) -> bytes:
    """A line of a traceback as Python prints it where the exception is alone, and in one process."""
    return _MARGIN.sub(b"", line, count=1)


def _cut(line: bytes) -> bytes:
    if len(line) <= _LINE_BYTES:
        return line
    return line[:_LINE_BYTES] + line[-1:]


_INTERRUPT = b"KeyboardInterrupt"
# Each stands between two empty lines.
JOINTS = frozenset(
    {
        b"During handling of the above exception, another exception occurred:",
        b"The above exception was the direct cause of the following exception:",
    }
)
JOINT_LINES = 3
_FRAME = re.compile(rb'  File "(.+)", line (\d+), in (.+)')
_COMMAND = b"<string>"  # of python -c; libraries generate code of this name, too
_NOT_THE_PROGRAM_S = re.compile(rb"^<(?!stdin>)|/lib/python3|/worker_runtime/|/rendezvous/client/|/hvdrun/shim/")


class InterruptFilter:
    """Replaces each traceback of KeyboardInterrupt in one stream by one line: after Ctrl-C every worker has one.

    The line names the last frame that is not in Python, an installed package, generated code, or hvdrun. Errors that
    were being handled when the interrupt came, which Python prints before it, are left out too. An error that was
    raised while the interrupt was handled stays, without the sentence that joins the two.

    A traceback, and what joins it to the next one, is held back until its last line has come.
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
                if line.startswith(_TRACEBACK) or not line.strip():
                    self._hold(line)
                else:
                    self._has_left_out = False
                    yield line

    def finish(self) -> list[bytes]:
        """End the stream; return the lines that were held back."""
        held, self._held = self._held, []
        self._is_within = False
        return held

    def _continues(self, line: bytes) -> bool:
        """Whether Python would have printed this after what is held back, on its way to an interrupt."""
        if self._is_within:
            return not line.startswith(_TRACEBACK)
        before, last = [b"", b"", *(each.strip() for each in self._held[-2:])][-2:]
        if line.startswith(_TRACEBACK):
            return before in JOINTS and not last
        if not line.strip():
            return bool(last)
        return bool(self._held) and not last and line.strip() in JOINTS

    def _hold(self, line: bytes) -> None:
        self._held.append(line)
        if line.startswith(_TRACEBACK):
            self._is_within, self._has_left_out = True, False
        elif self._is_within and line.strip() and not line.startswith(b" "):
            # Python may print empty lines within.
            self._is_within = False
        elif self._has_left_out and len(self._held) == JOINT_LINES:
            self._held.clear()


def _find_place(traceback: Sequence[bytes]) -> Iterator[bytes]:
    """The line that says where the program stood; none where the traceback has no frame."""
    frames = [(match, code) for line, code in pairwise([*traceback, b""]) if (match := _FRAME.match(line))]
    own = [each for each in frames if not _NOT_THE_PROGRAM_S.search(each[0][1])]
    commands = [each for each in frames if each[0][1] == _COMMAND]
    for match, code in own[-1:] or commands[:1] or frames[-1:]:
        text = code.strip()
        if _FRAME.match(code):
            text = b""
        yield b"interrupted at %b:%b, in %b%b%b\n" % (*match.groups(), b": " * bool(text), text)
