"""Equal tracebacks of several workers, which are shown once: after a fault of the script every worker has one."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hvdrun.console.lines import JOINT_LINES, JOINTS, begins_traceback, ends_traceback, find_traceback, strip_margin
from rendezvous.core.model import Worker
from rendezvous.wire.orders import OutputStream

CAPACITY_BYTES = 1024 * 1024
_RANK = re.compile(rb"^\[rank\d+\]: ?")  # torch.distributed's mark
_FAILED = re.compile(rb" failed on rank \d+: ")  # of `worker_runtime.errors.OperationFailedError`


class Source(NamedTuple):
    """One stream of one worker."""

    worker: Worker
    stream: OutputStream


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that are shown together, of one stream.

    sources: whose they are; of several only where they have written the same traceback.
    """

    sources: tuple[Source, ...]
    lines: list[bytes]
    is_traceback: bool = False


class TracebackFolder:
    """Holds back what a worker writes from the beginning of a traceback on, for a moment: others may write the same."""

    def __init__(self) -> None:
        self._held: dict[Worker, list[Part]] = {}
        self._size = 0

    @property
    def is_full(self) -> bool:
        """More is held back than there should be in memory."""
        return self._size > CAPACITY_BYTES

    def holds(self, worker: Worker) -> bool:
        """Something of this worker is held back."""
        return worker in self._held

    def take(self, source: Source, lines: list[bytes], shown: int) -> list[bytes]:
        """Of these lines, all that are to be shown now. Of the first ones (`shown`) a part is shown already."""
        begin: int | None = 0
        if source.worker not in self._held:
            begin = None
            if source.stream is OutputStream.STDERR:
                begin = find_traceback(lines, shown)
        if begin is None:
            return lines
        self._held.setdefault(source.worker, []).append(Part((source,), lines[begin:]))
        self._size += sum(map(len, lines[begin:]))
        return lines[:begin]

    def release(self) -> Iterator[Part]:
        """All that was held back, the lines of each worker in their order; equal tracebacks are one part."""
        held, self._held, self._size = self._held, {}, 0
        queues = {worker: deque(_split(parts)) for worker, parts in held.items()}
        for worker, queue in queues.items():
            while queue:
                part = queue.popleft()
                if not part.is_traceback:
                    yield part
                    continue
                sharers = list(part.sources)
                for other, theirs in queues.items():
                    index = next((at for at, each in enumerate(theirs) if each.is_traceback), None)
                    if other != worker and index is not None and _is_same(theirs[index], part):
                        yield from (theirs.popleft() for _ in range(index))
                        sharers += theirs.popleft().sources
                yield Part(tuple(sharers), part.lines if len(sharers) == 1 else [*map(_generalize, part.lines)])


def _split(parts: Sequence[Part]) -> Iterator[Part]:
    """The same lines in their order, each traceback a part of its own."""
    joined: list[Part] = []
    for part in parts:
        if joined and joined[-1].sources == part.sources:
            joined[-1].lines.extend(part.lines)
        else:
            joined.append(Part(part.sources, list(part.lines)))

    for part in joined:
        begin = plain = 0
        while begin < len(part.lines):
            size = 0
            if part.sources[0].stream is OutputStream.STDERR and begins_traceback(part.lines[begin]):
                size = measure_traceback(part.lines[begin:])
            if size:
                if plain < begin:
                    yield Part(part.sources, part.lines[plain:begin])
                yield Part(part.sources, part.lines[begin : begin + size], is_traceback=True)
                plain = begin + size
            begin += size or 1
        if plain < len(part.lines):
            yield Part(part.sources, part.lines[plain:])


def measure_traceback(lines: Sequence[bytes]) -> int:
    """How many of these lines are a traceback and those that are chained to it; 0 where its end is not among them."""
    texts = [strip_margin(line) for line in lines]
    end = next((index for index in range(1, len(texts)) if ends_traceback(texts[index])), None)
    if end is None:
        return 0
    end += 1
    # Notes, and the exceptions of a group.
    while end < len(lines) and _drop_rank(lines[end]).startswith(b" ") and lines[end].strip():
        end += 1
    after = end + JOINT_LINES
    before, joint, behind = [*(text.strip() for text in texts[end:after]), b"", b"", b""][:JOINT_LINES]
    if not before and joint in JOINTS and not behind and after < len(lines) and begins_traceback(lines[after]):
        size = measure_traceback(lines[after:])
        return after + size if size else 0
    return end


def _is_same(one: Part, other: Part) -> bool:
    return len(one.lines) == len(other.lines) and [*map(_generalize, one.lines)] == [*map(_generalize, other.lines)]


def _generalize(line: bytes) -> bytes:
    """The line as any of the ranks may have written it."""
    return _FAILED.sub(b" failed on these ranks: ", _drop_rank(line), count=1)


def _drop_rank(line: bytes) -> bytes:
    return _RANK.sub(b"", line, count=1)
