"""Whether SQLite's write-ahead log ends where the last write ended.

SQLite reads the log up to the first bad frame. That is right after a power cut: a commit that was cut short was not
durable. But after a fault in the middle it would drop durable commits without a word. A commit begins when the one
before is durable. So where the ends of two commits stand behind a bad frame, that frame was durable.

https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

import struct
from collections.abc import Iterator

_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_FRAME = struct.Struct(">6I")  # page, size of the database after a commit else 0, two salts, two checksums
_MAGIC = 0x377F0682  # + 1: the checksums read the words in the order of bytes of the network
_CHECKED_BYTES = 8  # of a frame's header; 24 of the log's


def has_lost_commits(log: bytes) -> bool:
    """SQLite would drop commits of this log that were durable."""
    if len(log) < _HEADER.size:
        return False
    magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack_from(log)
    order = ">" if magic & 1 else "<"
    sums = _add(log[:24], order, (0, 0))
    if magic & ~1 != _MAGIC or sums != (first, second):
        return len(log) > _HEADER.size + _FRAME.size  # the header is durable before the first frame is written
    is_whole, lost_ends = True, 0
    for head, body in _list_frames(log, page_bytes):
        _, size, *own, first, second = _FRAME.unpack(head)
        if own != salts:  # SQLite has begun anew from the front, and this is of the past
            is_whole = False
            continue
        if is_whole:
            sums = _add(body, order, _add(head[:_CHECKED_BYTES], order, sums))
            is_whole = sums == (first, second)
        if not is_whole and size:
            lost_ends += 1
    return lost_ends > 1


def _list_frames(log: bytes, page_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """The whole frames, each as its header and its page."""
    each = _FRAME.size + page_bytes
    for start in range(_HEADER.size, len(log) - each + 1, each):
        middle = start + _FRAME.size
        yield log[start:middle], log[middle : start + each]


def _add(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum, continued."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, other in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
