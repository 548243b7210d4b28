"""The words after flags: what is read, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.options import option as values

DURATIONS = {"30": 30, "30s": 30, "2m": 120, "1.5s": 1.5, "500ms": 0.5, "1h": 3600, ".5": 0.5, "0": 0, "3.": 3}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert values.parse_duration(text) == pytest.approx(seconds)


@given(st.integers(0, 10**7), st.sampled_from(["", "s", "ms", "m", "h"]))
def test_a_duration_is_never_negative_and_never_longer_than_a_year(number: int, unit: str) -> None:
    try:
        seconds = values.parse_duration(f"{number}{unit}")
    except ValueError:
        assert number * {"m": 60, "h": 3600}.get(unit, 1) > values.MAX_DURATION_SECONDS
    else:
        assert 0 <= seconds <= values.MAX_DURATION_SECONDS


TAKEN: dict[Callable[[str], object], dict[str, object]] = {
    values.parse_limit: {"1ms": 0.001},
    values.parse_count: {"1": 1, str(values.MAX_WORKERS): values.MAX_WORKERS},
    values.parse_whole_number: {"0": 0, "7": 7},
    values.parse_slots: {"65536": 65536},
    values.parse_cooldown: {"1": 1, "1h": 3600},
    values.parse_port: {"1": 1, "65535": 65535},
    values.parse_path: {"a b": Path("a b"), "~/key": Path.home() / "key"},
    values.parse_absolute_path: {"/opt/py/bin/python": "/opt/py/bin/python"},
    values.parse_shell_command: {"source env.sh && true": "source env.sh && true"},
    values.parse_interfaces: {
        "eth0": ("eth0",),
        "ib0, eth0.100": ("ib0", "eth0.100"),
        "eth*,10.78.0.0/16,fd77:0:0:2::/64": ("eth*", "10.78.0.0/16", "fd77:0:0:2::/64"),
    },
}


@pytest.mark.parametrize(
    ("parse", "text", "value"), [(parse, *row) for parse, table in TAKEN.items() for row in table.items()]
)
def test_what_an_option_takes_is_read(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


NO_DURATIONS = ["", "s", "-1", "1 s", "1d", "1m30s", "nan", "inf", "1e3", "٣", "9999999h", "9" * 5000, "."]
REFUSED: dict[Callable[[str], object], list[str]] = {
    values.parse_duration: NO_DURATIONS,
    values.parse_limit: ["0s"],
    values.parse_count: ["0", "-1", "x", "2.0", "1_000", " 2", "", "٣", "1000001", "9" * 5000],
    values.parse_whole_number: ["-1"],
    values.parse_slots: ["0", "65537"],
    values.parse_cooldown: ["999ms", "3601"],
    values.parse_port: ["0", "65536", "ssh"],
    values.parse_path: ["", "a\0b", "~no-such-user/x"],
    values.parse_absolute_path: ["python3", "./python3", ""],
    values.parse_shell_command: [" "],
    values.parse_interfaces: ["", "eth0,", "eth0 eth1", "a/b", "x" * 16],
}


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in REFUSED.items() for text in texts])
def test_what_an_option_does_not_take_is_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(text)
