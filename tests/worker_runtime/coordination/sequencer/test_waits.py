"""What is told of ranks that wait: to hvdrun as a line, and to a user as a sentence."""

import pytest

from rendezvous.wire.waits import AwaitedOperation, Waits, find_line
from tests.worker_runtime.coordination.sequencer.client import PLAIN
from worker_runtime.coordination.ordering.ordering import PendingSummary
from worker_runtime.coordination.ordering.requests import Request
from worker_runtime.coordination.sequencer.waits import MOST_OPERATIONS, Wait, describe_waits, encode_waits

MUTUAL = "the ranks have waited for each other for 12.5 s: allreduce 'a' for rank 1, allreduce 'b' for rank 0"


def wait(name: str, asked: tuple[int, ...], missing: tuple[int, ...], since: float = 0.0, process_set: int = 0) -> Wait:
    """An operation that waits."""
    return Wait(PendingSummary(Request(process_set, name, PLAIN), asked, missing), since, since)


def test_a_line_is_read_as_it_was_written() -> None:
    waits = [wait("allreduce.a", (0, 1, 2, 5), (3, 4)), wait("b", (4,), (0, 2), 7.0, process_set=2)]
    line = encode_waits(3, waits, (4,), 10.0, is_hang=True)
    assert line.endswith(b"\n")
    read = Waits.decode(find_line(b"an import says: " + line))
    assert read == Waits(
        3,
        (
            AwaitedOperation("allreduce 'a'", 10.0, (0, 1, 2, 5), (3, 4)),
            AwaitedOperation("b in process set 2", 3.0, (4,), (0, 2)),
        ),
        (4,),
        is_hang=True,
    )
    assert (read.waiting, read.missing) == ({0, 1, 2, 4, 5}, {0, 2, 3, 4})


def test_a_thousand_ranks_and_buckets_are_a_short_line() -> None:
    waits = [wait(f"allreduce.{bucket}", tuple(range(999)), (999,)) for bucket in range(1000)]
    line = encode_waits(3, waits, range(999), 10.0)
    assert len(line) < 4096  # which a pipe takes at once
    assert len(Waits.decode(find_line(line)).operations) == MOST_OPERATIONS


def test_the_end_of_a_wait_is_a_line_without_operations() -> None:
    assert Waits.decode(find_line(encode_waits(3, [], [], 0.0))) == Waits(3)


def test_a_line_of_another_kind_has_no_waits() -> None:
    assert find_line(b'{"port": 4711}\n') is None


@pytest.mark.parametrize(
    ("waits", "blocked", "sentence"),
    [
        ([wait("allreduce.a", (0, 1), (2,))], (), "rank 2 has not called allreduce 'a'; 2 others have waited there"),
        ([wait("allreduce.a", (0,), (1, 2))], (), "ranks 1, 2 have not called allreduce 'a'; 1 other has waited there"),
        # Rank 1 waits for rank 2 itself, which waits for nobody.
        (
            [wait("allreduce.a", (0,), (1,)), wait("allreduce.b", (1,), (2,))],
            (0, 1),
            "rank 2 has not called allreduce 'b'; 2 others have waited there",
        ),
        # All wait for each other.
        ([wait("allreduce.a", (0,), (1,)), wait("allreduce.b", (1,), (0,))], (0, 1), MUTUAL),
    ],
)
def test_a_sentence_names_the_ranks_that_wait_for_no_other(
    waits: list[Wait], blocked: tuple[int, ...], sentence: str
) -> None:
    text = describe_waits(waits, blocked, 12.5)
    assert text.startswith(sentence)
    assert " for 12.5 s" in text
