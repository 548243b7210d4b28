"""How much of some intervals of time lies in others."""

from collections.abc import Iterable

Interval = tuple[float, float]


def count_overlap(communication: Iterable[Interval], computation: Iterable[Interval]) -> tuple[float, float]:
    """How long something communicates, and how long something computes meanwhile; what is parallel counts once."""
    ours, theirs = merge(communication), merge(computation)
    total = sum(end - begin for begin, end in ours)
    shared = sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in ours for first, last in theirs)
    return total, shared


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time as intervals that do not touch."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged
