"""Which lines of a stream stand on the page that says why a job failed."""

from itertools import count

import pytest

from hvdrun.console.lines import HEAD_LINES, TAIL_LINES, Tail

BEGIN = "Traceback (most recent call last):"
FAILURE = [BEGIN, '  File "train.py", line 7, in <module>', '    read["key"]', "    ~~~~^^^^^^^", "KeyError: 'key'"]
OF_A_RANK = [f"[rank1]: {line}" for line in FAILURE]  # as torch.distributed prints it
GROUP = [
    f"  + Exception Group {BEGIN}",
    '  |   File "train.py", line 3, in <module>',
    '  |     raise ExceptionGroup("two", errors)',
    "  | ExceptionGroup: two (1 sub-exception)",
    "  +-+---------------- 1 ----------------",
    *(f"    | {line}" for line in FAILURE),
]

JOINT = ["", "The above exception was the direct cause of the following exception:", ""]
BOOTSTRAP = [
    f'  File "/lib/python3.11/threading.py", line {line} in {name}' for line, name in [(9, "run"), (2, "_bootstrap")]
]
CURRENT = ["Current thread 0x2 (most recent call first):", '  File "train.py", line 7 in <module>', ""]
THREAD_OF_HVDRUN = [
    "Thread 0x1 (most recent call first):",
    '  File "/x/worker_runtime/agent.py", line 3 in watch',
    *BOOTSTRAP,
    "",
]
ANOTHER = ["Thread 0x3 (most recent call first):", '  File "load.py", line 3 in load', *BOOTSTRAP, ""]
WITHIN = [
    "Thread 0x4 (most recent call first):",
    THREAD_OF_HVDRUN[1],
    '  File "train.py", line 3 in work',
    *BOOTSTRAP,
    "",
]
MAIN = ["Thread 0x5 (most recent call first):", THREAD_OF_HVDRUN[1], '  File "train.py", line 3 in <module>', ""]
CRASH = "Fatal Python error: Segmentation fault"


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
        (
            [*write_traceback(40), *["after"] * 30],
            [*write_traceback(40)[:HEAD_LINES], "  ...", "ValueError", "  ...", *["after"] * TAIL_LINES],
        ),
        ([*FAILURE, *["after"] * 30], [*FAILURE, "  ...", *["after"] * TAIL_LINES]),
        ([*FAILURE, *["after"] * (TAIL_LINES - 1)], [*FAILURE, *["after"] * (TAIL_LINES - 1)]),
        (
            [*FAILURE[:1], *FAILURE[1:3] * 20, *FAILURE[1:], "  more of the message", *["after"] * TAIL_LINES],
            [*FAILURE[:1], *(FAILURE[1:3] * 6)[:11], "  ...", *FAILURE[1:], "  ...", *["after"] * TAIL_LINES],
        ),
        (
            [*FAILURE, *["between"] * 30, *OF_A_RANK, *["after"] * 30],
            [*OF_A_RANK, "  ...", *["after"] * TAIL_LINES],
        ),
        ([CRASH, "", *THREAD_OF_HVDRUN * 4, *CURRENT, "Extension modules: numpy (total: 1)"], [CRASH, "", *CURRENT]),
        ([CRASH, "", *ANOTHER, *CURRENT], [CRASH, "", *ANOTHER, *CURRENT]),
        ([CRASH, *WITHIN[:-1], *THREAD_OF_HVDRUN], [CRASH, *WITHIN[:-1]]),
        ([CRASH, *MAIN, *THREAD_OF_HVDRUN[:-1]], [CRASH, *MAIN]),
        ([*FAILURE, *THREAD_OF_HVDRUN, *["after"] * 8], [*FAILURE[:-1], *FAILURE[-1:], *["after"] * 8]),
        ([*GROUP, *["after"] * 30], [*GROUP[5:], "  ...", *["after"] * TAIL_LINES]),
        # Of joined tracebacks the first is of the error that came first.
        (["x", *FAILURE, *JOINT, *FAILURE], [*FAILURE, *JOINT, *FAILURE]),
        (["x", *FAILURE, *JOINT, *write_traceback(12)], [*FAILURE, *JOINT, *write_traceback(12)]),
        (
            [*write_traceback(40), *JOINT, *write_traceback(12), *["after"] * 30],
            [
                *write_traceback(40)[:HEAD_LINES],
                "  ...",
                "ValueError",
                *JOINT,
                *write_traceback(12),
                "  ...",
                *["after"] * TAIL_LINES,
            ],
        ),
        (
            [*FAILURE, *JOINT, *write_traceback(30), *JOINT, *write_traceback(12)],
            [*FAILURE, *JOINT, "  ...", *write_traceback(12)],
        ),
        (
            [*OF_A_RANK, *(f"[rank1]: {line}" for line in JOINT), *OF_A_RANK, *["after"] * TAIL_LINES],
            [*OF_A_RANK, *(f"[rank1]: {line}" for line in JOINT), *OF_A_RANK, *["after"] * TAIL_LINES],
        ),
        ([*FAILURE, *JOINT, "x", *write_traceback(12)], write_traceback(12)),
    ],
)
def test_the_last_lines_are_shown_and_of_the_last_traceback_the_first_the_place_and_the_error(
    lines: list[str], shown: list[str], size: int
) -> None:
    tail = Tail(count())
    given = [f"{line}\n".encode() for line in lines]
    for first in range(0, len(given), size):
        tail.add(given[first : first + size])
    assert [line.text.decode().rstrip("\n") for line in tail.list_lines()] == shown
