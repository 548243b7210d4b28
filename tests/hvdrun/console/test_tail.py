"""Which lines of a stream stand on the page that says why a job failed."""

from itertools import count

import pytest

from hvdrun.console.lines import HEAD_LINES, TAIL_LINES, Tail

BEGIN = "Traceback (most recent call last):"


def write_traceback(length: int) -> list[str]:
    """So many lines."""
    return [BEGIN, *(f"  frame {number}" for number in range(length - 2)), "ValueError"]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["a", "b"], ["a", "b"]),
        ([f"{number}" for number in range(30)], [f"{number}" for number in range(20, 30)]),
        (["x", *write_traceback(TAIL_LINES)], write_traceback(TAIL_LINES)),
        (["x", *write_traceback(TAIL_LINES + 1)], write_traceback(TAIL_LINES + 1)),
        (["x", *write_traceback(TAIL_LINES + HEAD_LINES)], write_traceback(TAIL_LINES + HEAD_LINES)),
        (
            [*write_traceback(40), *write_traceback(50)],
            [*write_traceback(50)[:HEAD_LINES], "  ...", *write_traceback(50)[-TAIL_LINES:]],
        ),
        ([*write_traceback(40), *["after"] * TAIL_LINES], ["after"] * TAIL_LINES),
    ],
)
def test_the_last_lines_are_shown_and_of_a_long_traceback_the_first_too(
    lines: list[str], shown: list[str], size: int
) -> None:
    tail = Tail(count())
    told = [f"{line}\n".encode() for line in lines]
    for first in range(0, len(told), size):
        tail.add(told[first : first + size])
    assert [line.text.decode().rstrip("\n") for line in tail.list_lines()] == shown
