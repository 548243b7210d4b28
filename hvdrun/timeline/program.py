"""The command line of `hvdrun timeline`: its words and its page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.options.pages import render_program_help
from hvdrun.options.programs import TIMELINE
from hvdrun.timeline.parts import list_parts, read_events
from hvdrun.timeline.summary import Collective, Reader, Straggler, Summary, find_percentile

_SHOWN = 10
_PERCENTILES = (50, 90, 99)
_NARROW = 7  # columns of a part
_MILLISECONDS = 1000.0


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for: the file, and whether the answer is JSON."""

    path: Path
    as_json: bool


def read_request(words: Sequence[str]) -> Request | str:
    """The request, or the page that answers it.

    Raises:
        UsageError: the command line is wrong.
    """
    given = TIMELINE.parse(words)
    if "help" in given:
        return render_program_help(TIMELINE)
    if "file" not in given:
        raise UsageError("the file is missing: give one that hvdrun --timeline has written.")
    return Request(Path(str(given["file"])), "json" in given)


def run(request: Request) -> str:
    """The page about a timeline.

    Raises:
        UsageError: the file is no timeline.
    """
    reader = Reader()
    parts = list_parts(request.path)
    for part in parts:
        reader.read(read_events(part))
    if request.as_json:
        return render_json(reader.summary)
    return render(reader.summary, parts)


def render(summary: Summary, parts: Sequence[Path]) -> str:
    """The page for a person."""
    more = ""
    if len(parts) > 1:
        more = f" and {len(parts) - 1} more"
    ranks = _count(len(summary.ranks), "rank")
    collectives = _count(sum(each.count for each in summary.collectives.values()), "collective")
    lines = [f"{parts[0]}{more}: {summary.seconds:.1f} s, {ranks}, {collectives}"]
    for section in _SECTIONS:
        found = list(section(summary))
        lines += ["", *found] if found else []
    if summary.notes:
        lines += ["", "What happened to the job"]
    lines += [f"{at:9.2f} s  {text}" for at, text in summary.notes]
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _render_stragglers(summary: Summary) -> Iterator[str]:
    stragglers = _sort_stragglers(summary)
    if not stragglers:
        return
    yield "The last rank of a collective, and how long only it was missing"
    yield "  rank     last in    waited for it"
    for each in stragglers[:_SHOWN]:
        last = f"{each.last:>6,} ({each.last / summary.released:4.0%})"
        of_waiting, of_time = _share(each.waited, summary.waited), _share(each.waited, summary.seconds)
        yield f"{each.rank:6}  {last}   {each.waited:.2f} s ({of_waiting} of the waiting, {of_time} of the time)"


def _render_ranks(summary: Summary) -> Iterator[str]:
    if not summary.rank_times:
        return
    yield f"What the program of each rank waited for, in s; collectives ran for {summary.communication:.2f} s"
    yield "  rank   other ranks   communication   hidden behind its own work"
    for rank, times in sorted(summary.rank_times.items(), key=lambda item: -item[1].waiting)[:_SHOWN]:
        share = _share(times.hidden, times.communication)
        yield f"{rank:6}   {times.waiting:11.2f}   {times.exposed:13.2f}   {times.hidden:.2f} ({share})"


def _render_parts(summary: Summary) -> Iterator[str]:
    noted = [(rank, times) for rank, times in sorted(summary.rank_times.items()) if times.parts]
    names = list(dict.fromkeys(name for _, times in noted for name in times.parts))
    if not noted:
        return
    yield "What the time of each rank was spent on, in s"
    yield f"  rank{''.join(f'{name:>{max(len(name), _NARROW) + 2}}' for name in names)}"
    for rank, times in noted[:_SHOWN]:
        cells = (f"{times.parts.get(name, 0.0):{max(len(name), _NARROW) + 2}.2f}" for name in names)
        yield f"{rank:6}{''.join(cells)}"


def _render_steps(summary: Summary) -> Iterator[str]:
    steps = summary.list_steps()
    if not steps:
        return
    yield "Steps, in ms"
    yield "  rank   count      p50      p90      p99"
    for rank, seconds in list(steps.items())[:_SHOWN]:
        numbers = "".join(f"{find_percentile(seconds, percent) * _MILLISECONDS:9.2f}" for percent in _PERCENTILES)
        yield f"{'all' if rank is None else rank:>6}{len(seconds):8,}{numbers}"


def _render_slowest(summary: Summary) -> Iterator[str]:
    slowest = _sort_collectives(summary)
    if not slowest:
        return
    yield "The collectives that took longest, in ms on rank 0"
    yield "    total   count      p50      p90      p99     waiting  name"
    for each in slowest[:_SHOWN]:
        numbers = "".join(f"{find_percentile(each.durations, p) * _MILLISECONDS:9.2f}" for p in _PERCENTILES)
        waiting = each.waiting * _MILLISECONDS
        name = "".join(letter if letter.isprintable() else "?" for letter in each.name)
        yield f"{each.running * _MILLISECONDS:9.1f}{each.count:8,}{numbers}{waiting:12.1f}  {name}"


def _render_changes(summary: Summary) -> Iterator[str]:
    if summary.changes:
        yield "What changes of the members cost: from the last result before to the next release"
    for each in summary.changes[:_SHOWN]:
        yield f"{each.at:9.2f} s  generation {each.generation}: {each.seconds:.2f} s"
    if len(summary.changes) > _SHOWN:
        rest = summary.changes[_SHOWN:]
        yield f"{'':9}    and {len(rest)} more: {sum(each.seconds for each in rest):.2f} s"


def _render_recoveries(summary: Summary) -> Iterator[str]:
    recovered = [(rank, times.recoveries) for rank, times in sorted(summary.rank_times.items()) if times.recoveries]
    if not recovered:
        return
    yield "Recoveries of each rank: how many, in s all and the longest"
    for rank, seconds in recovered[:_SHOWN]:
        yield f"{rank:6}{len(seconds):8,}{sum(seconds):9.2f}{max(seconds):9.2f}"


_SECTIONS = (
    _render_stragglers,
    _render_ranks,
    _render_parts,
    _render_steps,
    _render_slowest,
    _render_changes,
    _render_recoveries,
)


def render_json(summary: Summary) -> str:
    """The same for a program."""

    def describe(each: Collective) -> dict[str, Any]:
        return {
            "name": each.name,
            "count": each.count,
            "seconds": round(each.running, 6),
            "waiting_seconds": round(each.waiting, 6),
            **_describe_percentiles(each.durations),
        }

    return json.dumps(
        {
            "version": 1,
            "seconds": round(summary.seconds, 6),
            "ranks": sorted(summary.ranks),
            "stragglers": [
                {"rank": each.rank, "last": each.last, "of": summary.released, "waited_seconds": round(each.waited, 6)}
                for each in _sort_stragglers(summary)
            ],
            "communication_seconds": round(summary.communication, 6),
            "waits": [
                {
                    "rank": rank,
                    "seconds": round(times.waiting + times.exposed, 6),
                    "waiting_seconds": round(times.waiting, 6),
                    "exposed_seconds": round(times.exposed, 6),
                    "hidden_seconds": round(times.hidden, 6),
                    "parts": {name: round(seconds, 6) for name, seconds in times.parts.items()},
                    "waited_for": [
                        {"rank": last, "seconds": round(seconds, 6)} for last, seconds in times.waited_for.items()
                    ],
                    "recoveries": [round(seconds, 6) for seconds in times.recoveries],
                }
                for rank, times in sorted(summary.rank_times.items())
            ],
            "steps": [
                {"rank": rank, "count": len(seconds), **_describe_percentiles(seconds)}
                for rank, seconds in summary.list_steps().items()
            ],
            "collectives": [describe(each) for each in _sort_collectives(summary)],
            "changes": [
                {"generation": each.generation, "at": round(each.at, 6), "seconds": round(each.seconds, 6)}
                for each in summary.changes
            ],
            "notes": [{"seconds": round(at, 6), "text": text} for at, text in summary.notes],
        },
        indent=1,
    )


def _describe_percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{percent}_seconds": round(find_percentile(seconds, percent), 6) for percent in _PERCENTILES}


def _sort_stragglers(summary: Summary) -> list[Straggler]:
    return sorted(summary.stragglers.values(), key=lambda each: -each.waited)


def _sort_collectives(summary: Summary) -> list[Collective]:
    return sorted(summary.collectives.values(), key=lambda each: -each.running)


def _share(part: float, whole: float) -> str:
    if not whole:
        return "0 %"
    return f"{part / whole * 100:.0f} %"
