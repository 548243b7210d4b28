"""The values of options: each kind of value reads its texts, and refuses all others."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.options import kinds

DURATIONS = {"30": 30, "30s": 30, "2m": 120, "1.5s": 1.5, "500ms": 0.5, "1h": 3600, ".5": 0.5, "0": 0, "3.": 3}


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert kinds.parse_duration(text) == pytest.approx(seconds)


@given(st.integers(0, 10**7), st.sampled_from(["", "s", "ms", "m", "h"]))
def test_a_duration_is_never_negative_and_never_longer_than_a_year(number: int, unit: str) -> None:
    try:
        seconds = kinds.parse_duration(f"{number}{unit}")
    except ValueError:
        assert number * {"m": 60, "h": 3600}.get(unit, 1) > kinds.MAX_DURATION_SECONDS
    else:
        assert 0 <= seconds <= kinds.MAX_DURATION_SECONDS


TAKEN: dict[Callable[[str], object], dict[str, object]] = {
    kinds.parse_limit: {"1ms": 0.001},
    kinds.parse_integer: {"1": 1, str(kinds.MAX_WORKERS): kinds.MAX_WORKERS},
    kinds.parse_whole_number: {"0": 0, "7": 7},
    kinds.parse_slots: {"65536": 65536},
    kinds.parse_cooldown: {"1": 1, "1h": 3600},
    kinds.parse_port: {"1": 1, "65535": 65535},
    kinds.parse_path: {"a b": Path("a b"), "~/key": Path.home() / "key"},
    kinds.parse_path_there: {"DYNAMIC": "DYNAMIC", "~/t.json": str(Path.home() / "t.json")},
    kinds.parse_absolute_path: {"/opt/py/bin/python": "/opt/py/bin/python"},
    kinds.parse_shell_command: {"source env.sh && true": "source env.sh && true"},
    kinds.parse_interfaces: {
        "eth0": ("eth0",),
        "ib0, eth0.100": ("ib0", "eth0.100"),
        "eth*,10.78.0.0/16,fd77:0:0:2::/64": ("eth*", "10.78.0.0/16", "fd77:0:0:2::/64"),
    },
}


@pytest.mark.parametrize(
    ("parse", "text", "value"), [(parse, *row) for parse, table in TAKEN.items() for row in table.items()]
)
def test_a_right_value_is_read(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


NO_DURATIONS = ["", "s", "-1", "1 s", "1d", "1m30s", "nan", "inf", "1e3", "٣", "9999999h", "9" * 5000, "."]
REFUSED: dict[Callable[[str], object], list[str]] = {
    kinds.parse_duration: NO_DURATIONS,
    kinds.parse_limit: ["0s"],
    kinds.parse_integer: ["0", "-1", "x", "2.0", "1_000", " 2", "", "٣", "1000001", "9" * 5000],
    kinds.parse_whole_number: ["-1"],
    kinds.parse_slots: ["0", "65537"],
    kinds.parse_cooldown: ["999ms", "3601"],
    kinds.parse_port: ["0", "65536", "ssh"],
    kinds.parse_path: ["", "-", "a\0b", "~no-such-user/x"],
    kinds.parse_path_there: ["", "-", "~no-such-user/x"],
    kinds.parse_absolute_path: ["python3", "./python3", ""],
    kinds.parse_shell_command: [" "],
    kinds.parse_interfaces: [
        *("", "eth0,", ",", "eth0,,eth1", "eth0 eth1", "x" * 16),
        *("10.0.0.0/33", "10.0.0/8", "fe80::/200", "eth0/24", "a/b"),
    ],
}


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in REFUSED.items() for text in texts])
def test_a_wrong_value_is_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(text)
