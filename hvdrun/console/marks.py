"""What stands before each line of a worker: the time and the rank."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from types import MappingProxyType

from hvdrun.console.folding import Source, TracebackFolder
from hvdrun.console.lines import InterruptFilter, LineSplitter, Tail
from rendezvous.core.messages import Launch
from rendezvous.core.model import Generation, Worker
from rendezvous.core.outcome import describe_ranks
from rendezvous.wire.orders import OutputStream

STREAM_NAMES: Mapping[OutputStream, str] = {OutputStream.STDOUT: "stdout", OutputStream.STDERR: "stderr"}

_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)  # a terminal's foregrounds; red is left to what went wrong
_ERASE_LINE = b"\x1b[K"
_TERMINAL = "terminal"  # among the files: all terminals are one
_OWN_COLOUR = 39  # the terminal's; a full reset would end what else the worker has set


@dataclass(frozen=True, slots=True)
class Marks:
    """Which marks a job's output has.

    ranks: `[0] text`.
    hosts: `[0@server1] text`, where ranks are marked.
    times: `2026-01-31T12:00:00.123 [0] text`.
    horovod: `[0]<stdout>:text`, as programs that read horovodrun's output expect it; with times
        `Sat Jan 31 12:00:00 2026[0]<stdout>:text`.
    """

    ranks: bool = True
    hosts: bool = False
    times: bool = False
    horovod: bool = False

    def render(self, rank: int, host: str, now: datetime, *, coloured: bool, stream: str = "stdout") -> bytes:
        """The mark of a worker's line, up to its text; `now` is local time, and each rank has a colour of its own."""
        if self.horovod and self.ranks:
            return f"{now.ctime() if self.times else ''}[{rank}]<{stream}>:".encode()
        time = render_time(now) if self.times else ""
        if not self.ranks:
            return time.encode()
        name = f"[{rank}@{host}]" if self.hosts else f"[{rank}]"
        if coloured:
            name = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{name}\x1b[{_OWN_COLOUR}m"
        return f"{time}{name} ".encode()

    def render_several(self, ranks: Sequence[int], now: datetime) -> bytes:
        """The mark of a line that several workers have written, `[0-6,9]`."""
        _, _, runs = describe_ranks(ranks).partition(" ")
        return f"{render_time(now) if self.times else ''}[{runs.replace(' ', '')}] ".encode()

    def render_own(self, text: str, now: datetime) -> str:
        """The lines of hvdrun's own `text`, each with its time where lines have one."""
        return "".join(f"{render_time(now) if self.times else ''}{line}" for line in text.splitlines(keepends=True))


class RankTable:
    """The rank of each worker that was ever launched.

    It is the rank in the newest generation. A worker that is in no generation, or has left it, keeps the last rank that
    it had or was launched with.

    Args:
        look: returns the newest generation; None before the first.
    """

    def __init__(self, look: Callable[[], Generation | None]) -> None:
        self._look = look
        self._read: Generation | None = None
        self._ranks: dict[Worker, int] = {}

    def restore(self, ranks: Mapping[Worker, int]) -> None:
        """Add the ranks of workers that a former server of the job has launched."""
        self._ranks.update(ranks)

    def note_launch(self, launch: Launch) -> None:
        """Note the rank with which a worker is started."""
        self._ranks.setdefault(launch.worker, launch.assignment.rank)

    def find_rank(self, worker: Worker) -> int:
        """The rank of a worker; 0 for one that was never launched."""
        generation = self._look()
        if generation is not None and generation is not self._read:
            self._read = generation
            self._ranks.update((member, rank) for rank, member in enumerate(generation.members))
        return self._ranks.get(worker, 0)

    def forget(self, worker: Worker) -> None:
        """Drop a worker whose rank is no longer needed."""
        self._ranks.pop(worker, None)


def render_time(now: datetime) -> str:
    """What stands before a line that came at this local time."""
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03} "


def read_local_clock() -> datetime:
    """The local time, with its zone."""
    return datetime.now().astimezone()


class OutputMarker:
    """Turns the bytes of workers into marked lines, without writing them, and keeps the last lines of each worker.

    The rank of a worker may change with each generation: a line has the rank at the time when it was complete.

    Args:
        marks: what stands before each line.
        terminals: the streams that are shown on a terminal. There, what comes after another worker's progress bar
            (a line that ended with a carriage return) first erases it.
        files: the files of the other streams, which file each goes to; two may share one. Where a stream has none, each
            worker writes a file of its own.
        coloured: the streams in which marks have colours.
        folds: equal tracebacks of several workers are shown once, where marks say whose they are.
        clock: the local time.
    """

    def __init__(
        self,
        marks: Marks,
        *,
        terminals: Collection[OutputStream] = (),
        files: Mapping[OutputStream, Hashable] = MappingProxyType({}),
        coloured: Collection[OutputStream] = (),
        folds: bool = False,
        clock: Callable[[], datetime] = read_local_clock,
    ) -> None:
        self._marks = marks
        self._terminals = frozenset(terminals)
        self._files = {**files, **dict.fromkeys(terminals, _TERMINAL)}
        self._coloured = frozenset(coloured)
        self._clock = clock
        self._splitters: dict[Source, LineSplitter] = {}
        self._tails: dict[Source, Tail] = {}
        self._ranks: dict[Worker, int] = {}  # of workers with a splitter, the last known rank
        self._bar: Source | None = None  # whose progress bar the cursor is on
        self._begun: dict[Source, int] = {}  # how many bytes of an incomplete line are shown
        self._open: dict[Hashable, Source] = {}  # by file, behind whose incomplete line the next byte comes
        self._numbers = count()
        self._filters: dict[Source, InterruptFilter] = {}
        self._hides_interrupts = False
        self._folder: TracebackFolder | None = None
        if folds and marks.ranks and not marks.horovod:
            self._folder = TracebackFolder()

    def hide_interrupts(self) -> None:
        """Leave tracebacks of KeyboardInterrupt on standard error out from now on."""
        self._hides_interrupts = True

    def feed(self, worker: Worker, rank: int, stream: OutputStream, data: bytes) -> bytes:
        """Take the next bytes of a worker's stream; return the lines that are now complete, marked."""
        source = Source(worker, stream)
        self._ranks[worker] = rank
        splitter = self._splitters.get(source)
        if splitter is None:
            splitter = self._splitters[source] = LineSplitter()
        lines = self._hide(source, splitter.feed(data))
        if lines and self._folder is not None:
            lines = self._folder.take(source, lines, int(source in self._begun))
        return self._mark(source, lines)

    def holds(self, worker: Worker) -> bool:
        """Lines of this worker are held back until `release`."""
        return self._folder is not None and self._folder.holds(worker)

    @property
    def must_release(self) -> bool:
        """Too many lines are held back."""
        return self._folder is not None and self._folder.is_full

    def release(self) -> Iterator[tuple[OutputStream, bytes]]:
        """All lines that were held back, marked, with their streams."""
        for part in self._folder.release() if self._folder is not None else ():
            first, *others = part.sources
            for source in others:
                self._tails.setdefault(source, Tail(self._numbers)).add(part.lines)
            yield first.stream, self._mark(first, part.lines, [self._ranks[source.worker] for source in part.sources])

    def has_incomplete_line(self, worker: Worker, stream: OutputStream) -> bool:
        """A line of this stream has begun, and has no end yet; `flush` shows it."""
        splitter = self._splitters.get(Source(worker, stream))
        return splitter is not None and splitter.is_inside_a_line

    def is_on_a_terminal(self, stream: OutputStream) -> bool:
        """Whether it is shown on a terminal."""
        return stream in self._terminals

    def flush(self, worker: Worker, stream: OutputStream) -> bytes:
        """Return the new bytes of an incomplete line; marked, if none were shown yet."""
        if not self.has_incomplete_line(worker, stream):
            return b""
        source = Source(worker, stream)
        text = self._splitters[source].unfinished
        begun, self._begun[source] = self._begun.get(source, 0), len(text)
        if len(text) > begun:
            return self._show(source, text[begun:])
        return b""

    def note_typed_line(self) -> None:
        """Note that the user has typed a line, which has ended the one on the terminal."""
        self._open.pop(_TERMINAL, None)

    def finish(self, worker: Worker, stream: OutputStream) -> bytes:
        """End a worker's stream; return its last line where it was not complete, marked, with a newline added."""
        source = Source(worker, stream)
        splitter = self._splitters.pop(source, None)
        if splitter is None:
            return b""
        lines = self._hide(source, splitter.finish())
        held = self._filters.pop(source, None)
        if held is not None:
            lines = [*lines, *held.finish()]
        return self._mark(source, lines)

    def list_unfinished(self) -> tuple[Worker, ...]:
        """The workers that have written and were not finished, in the order of their ranks."""
        workers = {source.worker for source in self._splitters}
        return tuple(sorted(workers, key=lambda worker: (self._ranks[worker], worker)))

    def forget(self, worker: Worker) -> None:
        """Drop a worker that writes no more, and its last lines."""
        self._ranks.pop(worker, None)
        for stream in OutputStream:
            self._splitters.pop(Source(worker, stream), None)
            self._begun.pop(Source(worker, stream), None)
            self._tails.pop(Source(worker, stream), None)

    def leave_line(self, stream: OutputStream, source: Source | None = None) -> bytes:
        """What to write to a stream before a line of `source` (None: hvdrun's own), so that it begins a line.

        A progress bar is erased, and a line that has begun is ended.
        """
        file = self._files.get(stream, source)
        leaves_bar = stream in self._terminals and self._bar not in {None, source}
        leaves_line = self._open.get(file) not in {None, source}
        if leaves_line:
            del self._open[file]
        if leaves_bar:
            self._bar = None
            return _ERASE_LINE
        if leaves_line:
            return b"\n"
        return b""

    def tail(self, worker: Worker) -> tuple[str, ...]:
        """A worker's last lines of both of its streams, in the order in which they came; see `Tail`."""
        tails = [tail for stream in OutputStream if (tail := self._tails.get(Source(worker, stream))) is not None]
        lines = sorted((line for tail in tails for line in tail.list_lines()), key=lambda line: line.number)
        return tuple(line.text.decode(errors="replace").rstrip("\r\n") for line in lines)

    def _hide(self, source: Source, lines: list[bytes]) -> list[bytes]:
        if not self._hides_interrupts or source.stream is not OutputStream.STDERR:
            return lines
        shown = int(source in self._begun)  # of the first line the beginning is shown already
        return [*lines[:shown], *self._filters.setdefault(source, InterruptFilter()).feed(lines[shown:])]

    def _mark(self, source: Source, lines: list[bytes], ranks: Sequence[int] = ()) -> bytes:
        if not lines:
            return b""
        self._tails.setdefault(source, Tail(self._numbers)).add(lines)
        begun = self._begun.pop(source, 0)
        # All of the first line is shown, and another worker's line has ended it.
        if lines[0][begun:] == b"\n" and begun and self._open.get(self._files.get(source.stream, source)) != source:
            lines, begun = lines[1:], 0
        if not lines:
            return b""
        return self._show(source, *lines, begun=begun, ranks=ranks)

    def _show(self, source: Source, *lines: bytes, begun: int = 0, ranks: Sequence[int] = ()) -> bytes:
        """The lines, marked; of the first one `begun` bytes are shown already. The last one may have no end.

        ranks: the ranks of all workers that have written them, where these are several.
        """
        rank, host = self._ranks[source.worker], source.worker.slot.host
        coloured, stream = source.stream in self._coloured, STREAM_NAMES[source.stream]
        mark = self._marks.render(rank, host, self._clock(), coloured=coloured, stream=stream)
        if len(ranks) > 1:
            mark = self._marks.render_several(ranks, self._clock())
        before = self.leave_line(source.stream, source)
        file = self._files.get(source.stream, source)
        lead = mark
        if self._open.pop(file, None) == source:
            lead = b""
        if source.stream in self._terminals:
            self._bar = None
            if lines[-1].endswith(b"\r"):
                self._bar = source
        if not lines[-1].endswith((b"\r", b"\n")):
            self._open[file] = source
        return before + lead + mark.join(lines)[begun:]
