"""Slurm's short forms: lists of hosts, `n[1-3,07],login`, and of counts, `2(x3),1`. Pure."""

import itertools
import math
import re
from collections.abc import Iterator

MAX_ITEMS = 1_000_000  # a mistyped range must not fill the memory
_NOT = "{!r} is no list of Slurm's"
_PIECE = re.compile(r"[^\[\],]+|\[[^\[\]]+\]")
_LIST = re.compile(r"(?:[^\[\],]|\[[^\[\]]+\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names in a list of Slurm, in order.

    Raises:
        ValueError: the text is no such list.
    """
    entries = _LIST.findall(text)
    if not text or ",".join(entries) != text:
        raise ValueError(_NOT.format(text))
    names: list[str] = []
    for entry in entries:
        pieces = [_expand_piece(piece) for piece in _PIECE.findall(entry)]
        _check_length(len(names) + math.prod(map(len, pieces)), text)
        names += map("".join, itertools.product(*pieces))
    return tuple(names)


def expand_counts(text: str) -> tuple[int, ...]:
    """The counts in a list of Slurm, one for each host.

    Raises:
        ValueError: the text is no such list.
    """
    counts: list[int] = []
    for entry in text.split(","):
        found = _COUNT.fullmatch(entry)
        if found is None:
            raise ValueError(_NOT.format(text))
        times = int(found[2] or 1)
        _check_length(len(counts) + times, text)
        counts += [int(found[1])] * times
    return tuple(counts)


def _expand_piece(piece: str) -> list[str]:
    """A part of a name: itself, or each number within brackets."""
    if not piece.startswith("["):
        return [piece]
    return list(itertools.chain.from_iterable(map(_expand_range, piece[1:-1].split(","))))


def _expand_range(text: str) -> Iterator[str]:
    """The numbers of a range, with as many digits as the first: `08-10`."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(_NOT.format(text))
    first, last = int(found[1]), int(found[2] or found[1])
    _check_length(last - first, text)
    return (f"{number:0{len(found[1])}d}" for number in range(first, last + 1))


def _check_length(length: int, text: str) -> None:
    if not 0 <= length <= MAX_ITEMS:
        raise ValueError(_NOT.format(text))
