"""Where a test was left."""

import inspect

import pytest

from hvdrun.testing.rank import Call, Place


def leave(how: str) -> None:
    if how == "return":
        return
    if how == "raise":
        raise ValueError(how)
    int("no number")


def find_line(text: str) -> int:
    lines, start = inspect.getsourcelines(leave)
    return start + next(number for number, line in enumerate(lines) if line.strip().startswith(text))


def test_a_call_that_returns_knows_the_line() -> None:
    call = Call(leave)
    call.run({"how": "return"})
    assert call.place == Place(__file__, find_line("return"))


@pytest.mark.parametrize(("how", "text"), [("raise", "raise"), ("within", 'int("no')])
def test_an_exception_is_placed_in_the_tests_own_file(how: str, text: str) -> None:
    call = Call(leave)
    with pytest.raises(ValueError, match=r"raise|no number") as caught:
        call.run({"how": how})
    assert call.place is None
    assert call.find_place(caught.value) == Place(__file__, find_line(text))
