"""Tells which ranks hold up the others, and where they are; ends those that do so for too long, where that is asked.

The sequencer reports that ranks wait, and that a wait has ended. Between the two the launcher asks where the missing
ranks are. It prints a line only if they are still missing after they were asked. The line is no judgement: the wait may
be meant, as during an evaluation on rank 0.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from hvdrun.console.page import describe_seconds
from hvdrun.hangs.places import RankPlace
from hvdrun.processes.background import cancel_and_wait, start_task
from rendezvous.core.outcome import describe_ranks
from rendezvous.wire.waits import Waits

SETTLE_SECONDS = 0.25  # a rank that was asked where it is just before it joined the operation has joined by then
_MINUTE_SECONDS = 59.5  # rounded
_MOST_GROUPS = 3  # of ranks with equal places, in a line


class HoldUps:
    """Reads the reports of the sequencers of one job; belongs to one event loop.

    Args:
        find_places: where these ranks are.
        notice: prints a sentence.
        give_up: ends a rank of this generation, for a reason.
        is_current: whether this generation is the newest, whose ranks can be found.
        hang_timeout_seconds: `--hang-timeout`, which the reason names; None where it is not given.
        settle_seconds: how long a rank that has answered may take to join the operation.
    """

    def __init__(
        self,
        find_places: Callable[[Collection[int]], Awaitable[Sequence[RankPlace]]],
        notice: Callable[[str], None],
        give_up: Callable[[int, int, str], None],
        is_current: Callable[[int], bool],
        hang_timeout_seconds: float | None = None,
        *,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._find_places = find_places
        self._notice = notice
        self._give_up = give_up
        self._is_current = is_current
        self._hang_timeout_seconds = hang_timeout_seconds
        self._settle_seconds = settle_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_hang = False  # the tasks are about a wait that exceeds --hang-timeout

    def note(self, text: str) -> None:
        """Take a report; a newer one replaces what is being asked, unless that is about a hang that goes on."""
        waits = Waits.decode(text)
        if waits.missing and self._tasks and self._is_hang:
            return
        self._is_hang = waits.is_hang
        for task in self._tasks:
            task.cancel()
        if waits.missing:
            start_task(self._follow(waits), "find the ranks that hold up the others", self._tasks)

    async def close(self) -> None:
        """Tell no more."""
        await cancel_and_wait(self._tasks)

    async def _follow(self, waits: Waits) -> None:
        places = await self._find_places(waits.missing)
        await asyncio.sleep(self._settle_seconds)
        culprits = find_culprits(waits, places)
        if not culprits or not self._is_current(waits.generation):
            return
        if not waits.is_hang:
            self._notice(describe(waits, culprits))
            return
        for each in culprits:
            limit = f"{self._hang_timeout_seconds or 0:g} s (--hang-timeout)"
            self._give_up(waits.generation, each.rank, f"it held up the others for {limit}; {_say_where_it_was(each)}")


def find_culprits(waits: Waits, places: Sequence[RankPlace]) -> list[RankPlace]:
    """The missing ranks that wait for nobody themselves; all of them if they wait for each other."""
    missing = [each for each in places if each.rank in waits.missing]
    free = [each for each in missing if each.rank not in waits.blocked and not each.stack.is_in_runtime]
    return free or missing


def describe(waits: Waits, culprits: Sequence[RankPlace]) -> str:
    """The line: `rank 3 (server2) is in train.py:88 in load: q.get(); 7 others have waited for it in ... for 10 s`."""
    groups: dict[tuple[str, str], list[int]] = {}
    for each in culprits:
        groups.setdefault((each.host, _say_where(each)), []).append(each.rank)
    shown = list(groups.items())[:_MOST_GROUPS]
    parts = []
    for (host, where), ranks in shown:
        said = where
        if len(ranks) > 1:
            said = where.replace("is in ", "are in ", 1)
        parts.append(f"{describe_ranks(ranks)} ({host}) {said}")
    if len(groups) > len(shown):
        rest = sum(len(ranks) for ranks in groups.values()) - sum(len(ranks) for _, ranks in shown)
        parts.append(f"{rest} more ranks are elsewhere (hvdrun stacks shows where)")
    return "; ".join([*parts, _describe_wait(waits, {each.rank for each in culprits})])


def _describe_wait(waits: Waits, named: Collection[int]) -> str:
    others = waits.waiting.difference(named)
    if not others:
        lacks = [f"{each.name} for {describe_ranks(each.missing)}" for each in waits.operations]
        return f"they wait for each other: {', '.join(lacks)}"
    operation = next(each for each in waits.operations if not set(named).isdisjoint(each.missing))
    have = f"{len(others)} others have"
    if len(others) == 1:
        have = f"rank {min(others)} has"
    it = "it" if len(named) == 1 else "them"
    return f"{have} waited for {it} in {operation.name} for {_say_how_long(operation.seconds)}"


def _say_how_long(seconds: float) -> str:
    if seconds < _MINUTE_SECONDS:
        return f"{round(seconds, 1):g} s"
    return describe_seconds(seconds)


def _say_where(place: RankPlace) -> str:
    if place.stack.frames:
        return f"is in {place.stack}"
    return f"is somewhere ({place.stack})"


def _say_where_it_was(place: RankPlace) -> str:
    if place.stack.frames:
        return f"it was in {place.stack}"
    reason = str(place.stack).partition(": ")[0]  # what follows is a remedy, for which it is too late
    return f"where it was is not known ({reason})"
