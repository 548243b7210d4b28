"""A line names the ranks that hold up the others, once the wait has lasted, and only while it lasts."""

import asyncio
import json
from collections.abc import Collection, Sequence

import pytest

from hvdrun.hangs.hold_ups import HoldUps, describe, find_culprits
from hvdrun.hangs.places import RankPlace
from hvdrun.spec.stacks import Frame, Stack
from rendezvous.wire.waits import AwaitedOperation, Waits
from tests.waiting import happen, in_loop

RUNTIME = Frame("/x/site-packages/worker_runtime/engine/engine.py", 5, "wait")
LOAD = Stack(7, (Frame("train.py", 88, "load", "q.get()"),))
STEP = Stack(7, (RUNTIME, Frame("train.py", 40, "main", "step()")))
SHELL = Stack(7, obstacle="its program, sh, is not Python")


def awaited(missing: Sequence[int], asked: Sequence[int], name: str = "allreduce 'a'") -> AwaitedOperation:
    """An operation that waits for 10 s."""
    return AwaitedOperation(name, 10.0, tuple(asked), tuple(missing))


# By the line: what is known.
LINES: dict[str, tuple[Waits, list[RankPlace]]] = {
    "rank 3 (b) is in train.py:88 in load: q.get(); 3 others have waited for it in allreduce 'a' for 10 s": (
        Waits(1, (awaited([3], [0, 1, 2]),)),
        [RankPlace(3, "b", LOAD)],
    ),
    "ranks 1-2 (b) are in train.py:88 in load: q.get(); rank 0 has waited for them in allreduce 'a' for 10 s": (
        Waits(1, (awaited([1, 2], [0]),)),
        [RankPlace(1, "b", LOAD), RankPlace(2, "b", LOAD)],
    ),
    "rank 1 (a) is somewhere (its program, sh, is not Python); rank 2 (b) is in train.py:88 in load: q.get(); "
    "rank 0 has waited for them in allreduce 'a' for 10 s": (
        Waits(1, (awaited([1, 2], [0]),)),
        [RankPlace(1, "a", SHELL), RankPlace(2, "b", LOAD)],
    ),
    # Rank 1 waits for rank 2 itself, which the sequencer knows.
    "rank 2 (b) is in train.py:88 in load: q.get(); 2 others have waited for it in allreduce 'b' for 10 s": (
        Waits(1, (awaited([1], [0]), awaited([2], [1], "allreduce 'b'")), blocked=(1,)),
        [RankPlace(1, "a", STEP), RankPlace(2, "b", LOAD)],
    ),
    # Or which only its stack shows, since the program has other threads.
    "rank 2 (c) is in train.py:88 in load: q.get(); 2 others have waited for it in allreduce 'b' for 10 s": (
        Waits(1, (awaited([1], [0]), awaited([2], [1], "allreduce 'b'"))),
        [RankPlace(1, "a", STEP), RankPlace(2, "c", LOAD)],
    ),
    "ranks 0-1 (a) are in train.py:40 in main: step(); they wait for each other: allreduce 'a' for rank 1, "
    "allreduce 'b' for rank 0": (
        Waits(1, (awaited([1], [0]), awaited([0], [1], "allreduce 'b'")), blocked=(0, 1)),
        [RankPlace(0, "a", STEP), RankPlace(1, "a", STEP)],
    ),
    "rank 1 (h1) is in train.py:88 in load: q.get(); rank 2 (h2) is in train.py:88 in load: q.get(); rank 3 (h3) is "
    "in train.py:88 in load: q.get(); 4 more ranks are elsewhere (hvdrun stacks shows where); "
    "rank 0 has waited for them in allreduce 'a' for 10 s": (
        Waits(1, (awaited(range(1, 8), [0]),)),
        [RankPlace(rank, f"h{rank}", LOAD) for rank in range(1, 8)],
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_the_line_names_the_ranks_that_wait_for_no_other(line: str) -> None:
    waits, places = LINES[line]
    assert describe(waits, find_culprits(waits, places)) == line


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (2.0, "2 s"),
        (4.0123, "4 s"),
        (0.5, "0.5 s"),
        (59.7, "1 min 0 s"),
        (1280.0, "21 min 20 s"),
        (10241.0, "2 h 50 min"),
    ],
)
def test_the_line_says_in_words_how_long_the_wait_lasts(seconds: float, words: str) -> None:
    waits = Waits(1, (AwaitedOperation("allreduce 'a'", seconds, (0,), (1,)),))
    assert describe(waits, [RankPlace(1, "b", LOAD)]).endswith(f" in allreduce 'a' for {words}")


def encode(*, is_over: bool = False, is_hang: bool = False) -> str:
    """A report of the sequencer: rank 0 waits for ranks 1 and 2."""
    operations = [["allreduce 'a'", 10.0, [[0, 0]], [[1, 2]]]]
    fields = {"waits": 4, "operations": [] if is_over else operations, "blocked": [], "is_hang": is_hang}
    return json.dumps(fields)


class Room:
    """A job's hold-ups, what is printed, who is given up, and an answer that comes when it is released."""

    def __init__(self, places: Sequence[RankPlace] = (RankPlace(1, "b", LOAD), RankPlace(2, "b", SHELL))) -> None:
        self.lines: list[str] = []
        self.given_up: list[tuple[int, int, str]] = []
        self.answered = asyncio.Event()
        self.asked: list[Collection[int]] = []
        self._places = places
        self.generation = 4
        self.hold_ups = HoldUps(
            self._find,
            self.lines.append,
            lambda *given: self.given_up.append(given),
            lambda generation: generation == self.generation,
            60.0,
            settle_seconds=0.0,
        )

    async def _find(self, ranks: Collection[int]) -> Sequence[RankPlace]:
        self.asked.append(ranks)
        await self.answered.wait()
        return self._places


@in_loop
async def test_a_wait_is_reported_when_the_missing_ranks_have_been_asked() -> None:
    room = Room()
    room.answered.set()
    room.hold_ups.note(encode())
    await happen(lambda: room.lines != [], "a line")
    await room.hold_ups.close()
    assert room.asked == [{1, 2}]
    assert room.lines[0].startswith("rank 1 (b) is in train.py:88 in load: q.get(); rank 2 (b) is somewhere")
    assert room.given_up == []


@in_loop
async def test_a_wait_that_ends_while_the_ranks_are_asked_is_not_reported() -> None:
    room = Room()
    room.hold_ups.note(encode())
    await happen(lambda: room.asked != [], "a question")
    room.hold_ups.note(encode(is_over=True))
    room.answered.set()
    room.hold_ups.note(encode())
    await happen(lambda: room.lines != [], "the line of the next wait")
    await room.hold_ups.close()
    assert len(room.lines) == 1


@in_loop
async def test_a_wait_of_a_former_generation_is_not_reported() -> None:
    room = Room()
    room.generation = 5
    room.answered.set()
    room.hold_ups.note(encode())
    room.hold_ups.note(encode(is_hang=True))
    await happen(lambda: room.asked != [], "a question")
    for _ in range(5):
        await asyncio.sleep(0)
    await room.hold_ups.close()
    assert (room.lines, room.given_up) == ([], [])


@in_loop
async def test_ranks_that_have_ended_are_not_reported() -> None:
    room = Room(places=())
    room.answered.set()
    room.hold_ups.note(encode())
    await happen(lambda: room.asked != [], "a question")
    for _ in range(5):
        await asyncio.sleep(0)
    await room.hold_ups.close()
    assert room.lines == []


@in_loop
async def test_a_line_that_is_due_at_the_same_time_does_not_save_a_rank() -> None:
    room = Room()
    room.hold_ups.note(encode(is_hang=True))
    room.hold_ups.note(encode())
    room.answered.set()
    await happen(lambda: len(room.given_up) == 2, "two ranks")
    await room.hold_ups.close()


@in_loop
async def test_a_hang_that_ends_while_the_ranks_are_asked_ends_no_worker() -> None:
    room = Room()
    room.hold_ups.note(encode(is_hang=True))
    room.hold_ups.note(encode(is_over=True))
    room.hold_ups.note(encode())
    room.answered.set()
    await happen(lambda: room.lines != [], "the line of the next wait")
    await room.hold_ups.close()
    assert room.given_up == []


@in_loop
async def test_a_rank_that_was_ended_for_a_hang_has_no_remedy_any_more() -> None:
    stopped = Stack(7, obstacle="it is stopped: kill -CONT 7 lets it continue")
    room = Room([RankPlace(1, "b", stopped)])
    room.answered.set()
    room.hold_ups.note(encode(is_hang=True))
    await happen(lambda: room.given_up != [], "a rank")
    await room.hold_ups.close()
    held = "it held up the others for 60 s (--hang-timeout); where it was is not known (it is stopped)"
    assert room.given_up == [(4, 1, held)]


@in_loop
async def test_after_the_hang_timeout_those_who_hold_up_the_others_are_given_up() -> None:
    room = Room()
    room.answered.set()
    room.hold_ups.note(encode(is_hang=True))
    await happen(lambda: len(room.given_up) == 2, "two ranks")
    await room.hold_ups.close()
    held = "it held up the others for 60 s (--hang-timeout);"
    assert room.given_up == [
        (4, 1, f"{held} it was in train.py:88 in load: q.get()"),
        (4, 2, f"{held} where it was is not known (its program, sh, is not Python)"),
    ]
    assert room.lines == []
