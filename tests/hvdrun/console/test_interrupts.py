"""What becomes of tracebacks in a stream after a Ctrl-C."""

import pytest

from hvdrun.console.lines import InterruptFilter

BEGINNING = "Traceback (most recent call last):"
JOINT = ["", "During handling of the above exception, another exception occurred:", ""]
CAUSE = ["", "The above exception was the direct cause of the following exception:", ""]
PLACE = b"interrupted at train.py:3, in <module>: time.sleep(600)\n"
FRAMES = [BEGINNING, '  File "train.py", line 3, in <module>', "    time.sleep(600)", "    ^^^^^^^^^^"]


@pytest.mark.parametrize(
    ("lines", "left_out"),
    [
        ([*FRAMES, "KeyboardInterrupt"], True),
        ([*FRAMES, "KeyboardInterrupt: stop"], True),
        ([*FRAMES, "", '  File "/lib/python3.11/x.py", line 1, in f', "", "KeyboardInterrupt"], True),
        ([*FRAMES, "ValueError: KeyboardInterrupt"], False),
        (["KeyboardInterrupt"], False),
        ([*FRAMES, "nothing that Python says"], False),
        ([BEGINNING, *FRAMES, "ValueError"], False),
        (FRAMES, False),
        ([*FRAMES, "ValueError", *JOINT, *FRAMES, "OSError: x", *CAUSE, *FRAMES, "KeyboardInterrupt"], True),
        ([*FRAMES, "ValueError", *JOINT, *FRAMES, "OSError"], False),
        (["", "", JOINT[1], "", *JOINT, "text", *FRAMES, "ValueError", "", *FRAMES], False),
    ],
)
def test_only_whole_tracebacks_of_interrupts_are_left_out(lines: list[str], *, left_out: bool) -> None:
    given = [f"{line}\n".encode() for line in ["before", *lines, "after"]]
    hush = InterruptFilter()
    shown = [*(each for line in given for each in hush.feed([line])), *hush.finish()]
    assert shown == ([given[0], PLACE, given[-1]] if left_out else given)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([*FRAMES, "KeyboardInterrupt", *JOINT, *FRAMES, "ValueError"], [PLACE, *FRAMES, "ValueError"]),
        ([*FRAMES, "E: of", "two lines", *JOINT, *FRAMES, "KeyboardInterrupt"], [*FRAMES, "E: of", "two lines", PLACE]),
        ([*FRAMES, "KeyboardInterrupt", "", "text", *JOINT], [PLACE, "", "text", *JOINT]),
    ],
)
def test_an_interrupt_s_link_to_another_error_is_left_out(lines: list[str], expected: list[str | bytes]) -> None:
    hush = InterruptFilter()
    shown = [*hush.feed(f"{line}\n".encode() for line in lines), *hush.finish()]
    assert shown == [line if isinstance(line, bytes) else f"{line}\n".encode() for line in expected]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (["train.py", "/x/lib/python3.11/site-packages/torch/nn.py"], "train.py:0, in f: g(0)"),
        (["a.py", "/home/b.py", "/src/worker_runtime/x.py", "/src/rendezvous/client/y.py"], "/home/b.py:1, in f: g(1)"),
        (["/usr/lib/python3.13/runpy.py", "<frozen runpy>"], "<frozen runpy>:1, in f"),
        (["a.py", "<frozen importlib>", "/lib/python3.11/dataclasses.py", "<string>"], "a.py:0, in f: g(0)"),
        (["a.py", "/lib/python3.11/numpy.py", "<__array_function__ internals>"], "a.py:0, in f: g(0)"),
        (["<string>", "/lib/python3.11/dataclasses.py", "<string>"], "<string>:0, in f"),
        (["<stdin>", "/lib/python3.11/dataclasses.py", "<string>"], "<stdin>:0, in f"),
        ([], None),
    ],
)
def test_an_interrupt_is_shown_where_the_program_stood(files: list[str], place: str | None) -> None:
    frames = [
        line
        for number, file in enumerate(files)
        for line in [f'  File "{file}", line {number}, in f', f"    g({number})"][: 1 + (file[0] != "<")]
    ]
    shown = list(InterruptFilter().feed(f"{line}\n".encode() for line in [BEGINNING, *frames, "KeyboardInterrupt"]))
    assert shown == ([] if place is None else [f"interrupted at {place}\n".encode()])


def test_output_that_is_held_back_at_the_end_is_shown() -> None:
    hush = InterruptFilter()
    assert list(hush.feed([b"Traceback (most recent call last):\n"])) == []
    assert hush.finish() == [b"Traceback (most recent call last):\n"]
    assert hush.finish() == []
