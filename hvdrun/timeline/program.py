"""The command line of `hvdrun timeline`: its words and its page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdrun.errors import UsageError
from hvdrun.options.pages import render_program_help
from hvdrun.options.programs import TIMELINE
from hvdrun.timeline.parts import list_parts, read_events
from hvdrun.timeline.summary import Collective, Reader, Straggler, Summary

_SHOWN = 10
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
    count = sum(each.count for each in summary.collectives.values())
    lines = [f"{parts[0]}{more}: {summary.seconds:.1f} s, {len(summary.ranks)} ranks, {count:,} collectives"]

    stragglers = _sort_stragglers(summary)
    if stragglers:
        lines += [
            "",
            "The last rank of a collective, and how long only it was missing",
            "  rank     last in    waited for it",
        ]
    for straggler in stragglers[:_SHOWN]:
        share = straggler.last / summary.released
        waited = f"{straggler.waited:.2f} s ({_share(straggler.waited, summary.seconds)} of the time)"
        lines.append(f"{straggler.rank:6}  {straggler.last:>6,} ({share:4.0%})   {waited}")

    if summary.waits:
        lines += ["", "How long the program of each rank waited for results of collectives"]
    for rank, seconds in sorted(summary.waits.items(), key=lambda item: -item[1])[:_SHOWN]:
        lines.append(f"{rank:6}   {seconds:.2f} s ({_share(seconds, summary.seconds)} of the time)")

    slowest = _sort_collectives(summary)
    if slowest:
        lines += [
            "",
            "The collectives that took longest, in ms on rank 0",
            "    total   count      p50      p90      p99     waiting  name",
        ]
    for each in slowest[:_SHOWN]:
        numbers = "".join(f"{each.percentile(percent) * _MILLISECONDS:9.2f}" for percent in (50, 90, 99))
        waiting = each.waiting * _MILLISECONDS
        name = "".join(letter if letter.isprintable() else "?" for letter in each.name)
        lines.append(f"{each.running * _MILLISECONDS:9.1f}{each.count:8,}{numbers}{waiting:12.1f}  {name}")

    if summary.notes:
        lines += ["", "What happened to the job"]
    lines += [f"{at:9.2f} s  {text}" for at, text in summary.notes]
    return "\n".join(lines)


def render_json(summary: Summary) -> str:
    """The same for a program."""

    def describe(each: Collective) -> dict[str, Any]:
        return {
            "name": each.name,
            "count": each.count,
            "seconds": round(each.running, 6),
            "waiting_seconds": round(each.waiting, 6),
            **{f"p{percent}_seconds": round(each.percentile(percent), 6) for percent in (50, 90, 99)},
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
            "waits": [{"rank": rank, "seconds": round(waited, 6)} for rank, waited in sorted(summary.waits.items())],
            "collectives": [describe(each) for each in _sort_collectives(summary)],
            "notes": [{"seconds": round(at, 6), "text": text} for at, text in summary.notes],
        },
        indent=1,
    )


def _sort_stragglers(summary: Summary) -> list[Straggler]:
    return sorted(summary.stragglers.values(), key=lambda each: -each.waited)


def _sort_collectives(summary: Summary) -> list[Collective]:
    return sorted(summary.collectives.values(), key=lambda each: -each.running)


def _share(part: float, whole: float) -> str:
    if not whole:
        return "0 %"
    return f"{part / whole * 100:.0f} %"
