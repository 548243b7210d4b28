"""One option: its value, and what is said of one that it cannot have."""

import pytest

from hvdrun.errors import BadValueError
from hvdrun.options import BY_FLAG


@pytest.mark.parametrize(
    ("flag", "value", "source", "said"),
    [
        ("--start-timeout", "soon", "$START", r"^\$START takes a time .* not 'soon'\.$"),
        ("-bind-to", "hwthread", "-bind-to", r"^-bind-to takes none, core, socket or numa, .* not 'hwthread'\.$"),
    ],
)
def test_a_bad_value_says_where_it_came_from_and_what_was_wanted(flag: str, value: str, source: str, said: str) -> None:
    with pytest.raises(BadValueError, match=said):
        BY_FLAG[flag].read(value, source)


def test_a_switch_has_no_value_to_read() -> None:
    with pytest.raises(TypeError, match="-v"):
        BY_FLAG["-v"].read("1", "-v")


@pytest.mark.parametrize(("flag", "arity"), [("-v", 0), ("-np", 1), ("-x", 1), ("-mca", 2)])
def test_an_option_knows_how_many_words_follow_it(flag: str, arity: int) -> None:
    assert BY_FLAG[flag].arity == arity
