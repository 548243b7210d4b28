"""Which lines of a stream are left out after a Ctrl-C."""

import pytest

from hvdrun.console.interrupts import InterruptFilter

BEGINNING = "Traceback (most recent call last):"
FRAMES = [BEGINNING, '  File "train.py", line 3, in <module>', "    time.sleep(600)", "    ^^^^^^^^^^"]


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [
        ([*FRAMES, "KeyboardInterrupt"], True),
        ([*FRAMES, "KeyboardInterrupt: stop"], True),
        ([*FRAMES, "ValueError: KeyboardInterrupt"], False),
        (["KeyboardInterrupt"], False),
        ([*FRAMES, "nothing that Python says"], False),
        ([BEGINNING, *FRAMES, "ValueError"], False),
        (FRAMES, False),
    ],
)
def test_only_whole_tracebacks_of_interrupts_are_left_out(lines: list[str], *, left_out: bool) -> None:
    told = [f"{line}\n".encode() for line in ["before", *lines, "after"]]
    hush = InterruptFilter()
    shown = [*(each for line in told for each in hush.feed([line])), *hush.finish()]
    assert shown == ([told[0], told[-1]] if left_out else told)


def test_what_is_held_back_at_the_end_is_shown() -> None:
    hush = InterruptFilter()
    assert list(hush.feed([b"Traceback (most recent call last):\n"])) == []
    assert hush.finish() == [b"Traceback (most recent call last):\n"]
    assert hush.finish() == []
