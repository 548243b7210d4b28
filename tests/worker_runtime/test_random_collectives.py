"""Random programs of collectives on real ranks: no hang, no wrong bit, and every refusal is survived.

Every rank makes the same program from a seed, plays it in an order of its own, and compares what it gets with what
plain torch computes on one process. `make soak` plays many on four ranks (HVDRUN_SOAK_PROGRAMS).
"""

import os
from collections import Counter

import pytest

import worker_runtime.torch as hvd
from tests.worker_runtime.random_collectives.calls import ALLREDUCES, DTYPES, LAYOUTS, Kind, Maker
from tests.worker_runtime.random_collectives.player import UserError, play
from tests.worker_runtime.ranks import RankPool, Ranks

pytestmark = pytest.mark.devices

PROGRAMS = int(os.environ.get("HVDRUN_SOAK_PROGRAMS", "0"))
SEGMENTS = 10
SOAK_SIZE = 4
LEAST = 300  # of each kind of call, in a soak
COUNTED = (*Kind, "synchronous", "asynchronous", "refused", "while others have joined", "join", "threads")
SEEDS = range(16)  # of each commit
NIGHTLY = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(len(SEEDS), 80)]


def find_size(seed: int) -> int:
    """How many ranks play a program."""
    return (3, 2)[seed % 2]


def test_the_programs_of_each_commit_reduce_every_dtype_in_every_layout() -> None:
    """The tests of single collectives rely on it: they try corner cases only."""
    programs = [Maker(seed, find_size(seed)).make(SEGMENTS) for seed in SEEDS]
    calls = [call for segments in programs for segment in segments for call in segment.calls if not call.is_refused]
    reduced = [call for call in calls if call.kind in ALLREDUCES]
    assert {call.kind for call in calls} == set(Kind)
    assert {(call.op, dtype) for call in reduced for dtype in call.dtypes} == {
        (op, dtype) for op, dtypes in DTYPES.items() for dtype in dtypes
    }
    assert {(call.is_in_place, call.layout) for call in reduced} == {
        *((False, layout) for layout in LAYOUTS),
        *((True, layout) for layout in LAYOUTS if layout != "expanded"),
    }


@pytest.mark.parametrize("seed", [*SEEDS, *NIGHTLY])
def test_random_programs_give_what_one_process_computes(ranks: RankPool, seed: int) -> None:
    """All ranks have made the same calls unless they were left out of sets or have joined."""
    counts = ranks.run(play, seed, SEGMENTS, size=find_size(seed))
    assert all(each["asynchronous"] and each["synchronous"] for each in counts)


@pytest.mark.parametrize("seed", range(4))
def test_where_one_rank_fails_in_the_middle_all_end_and_the_next_world_is_right(ranks: RankPool, seed: int) -> None:
    """The others hear of it in whatever they are, and nothing is left that disturbs a later world."""

    def fail() -> str:
        try:
            play(seed, SEGMENTS, (seed % 3, 2 + seed))
        except (UserError, hvd.HorovodInternalError, AssertionError) as error:
            failure = error if isinstance(error, UserError) else error.__cause__ or error
            return type(failure).__name__
        return "nothing"

    failures = ranks.run(fail, size=3)
    assert failures.pop(seed % 3) == "UserError"
    assert set(failures) <= {"OperationRefusedError", "OperationFailedError"}
    ranks.run(play, seed, 2, size=3)


@pytest.mark.skipif(not PROGRAMS, reason="HVDRUN_SOAK_PROGRAMS says how many; make soak does")
@pytest.mark.timeout(0)
def test_many_random_programs_on_four_ranks_give_the_result_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    total: Counter[str] = Counter()
    with Ranks(SOAK_SIZE) as ranks:
        for seed in range(1000, 1000 + PROGRAMS):
            for counts in ranks.run(play, seed, SEGMENTS, size=SOAK_SIZE):
                total.update(counts)
    with capsys.disabled():
        print("\n" + "\n".join(f"{total[what]:>8} {what}" for what in COUNTED))  # noqa: T201 - the soak's result
    assert all(total[what] >= min(LEAST, PROGRAMS) for what in COUNTED)
