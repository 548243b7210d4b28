"""The one table of options."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdrun.errors import BadValueError
from hvdrun.options import (
    BY_FLAG,
    MAX_DURATION_SECONDS,
    MAX_WORKERS,
    OPTIONS,
    README_END,
    README_START,
    describe_options,
    make_click_options,
    parse_count,
    parse_duration,
    parse_limit,
    readme_table,
    replace_readme_table,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("30s", 30),
        ("2m", 120),
        ("1.5s", 1.5),
        ("500ms", 0.5),
        ("1h", 3600),
        (".5", 0.5),
        ("0", 0),
        ("3.", 3),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "1 s", "1d", "1m30s", "nan", "inf", "1e3", "٣", "9999999h", "9" * 5000, "."]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_duration(text)


@given(st.integers(0, 10**7), st.sampled_from(["", "s", "ms", "m", "h"]))
def test_a_duration_is_never_negative_and_never_longer_than_a_year(number: int, unit: str) -> None:
    try:
        seconds = parse_duration(f"{number}{unit}")
    except ValueError:
        assert number * {"m": 60, "h": 3600}.get(unit, 1) > MAX_DURATION_SECONDS
    else:
        assert 0 <= seconds <= MAX_DURATION_SECONDS


def test_a_limit_is_longer_than_nothing() -> None:
    assert parse_limit("1ms") == pytest.approx(0.001)
    with pytest.raises(ValueError, match="0"):
        parse_limit("0s")


def test_a_count_is_a_whole_number_from_one() -> None:
    assert parse_count("1") == 1
    assert parse_count(str(MAX_WORKERS)) == MAX_WORKERS


@pytest.mark.parametrize("text", ["0", "-1", "x", "2.0", "1_000", " 2", "", "٣", "1000001", "9" * 5000])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_count(text)


def test_every_default_is_what_its_option_reads() -> None:
    defaults = {option.dest: option.read(option.default, "default") for option in OPTIONS if option.default}
    assert defaults == {"start_timeout_seconds": 120.0, "grace_seconds": 5.0, "lease_seconds": 30.0}


def test_a_bad_value_says_where_it_came_from_and_what_was_wanted() -> None:
    with pytest.raises(BadValueError, match=r"^\$HOROVOD_START_TIMEOUT takes a time .* not 'soon'\.$"):
        BY_FLAG["--start-timeout"].read("soon", "$HOROVOD_START_TIMEOUT")


def test_a_switch_has_no_value_to_read() -> None:
    with pytest.raises(TypeError, match="-v"):
        BY_FLAG["-v"].read("1", "-v")


def test_no_flag_and_no_name_is_given_twice() -> None:
    flags = [flag for option in OPTIONS for flag in option.flags]
    assert len(set(flags)) == len(flags)
    assert len({option.dest for option in OPTIONS}) == len(OPTIONS)


def test_every_option_that_takes_a_value_says_which() -> None:
    for option in OPTIONS:
        assert bool(option.wanted) == bool(option.metavar) == option.takes_value
        assert option.help.endswith(".")


def test_click_gets_every_spelling() -> None:
    parameters = make_click_options({"help": lambda *_: None, "version": lambda *_: None})
    assert {flag for parameter in parameters for flag in parameter.opts} == set(BY_FLAG)
    assert all(isinstance(parameter, click.Option) for parameter in parameters)


def test_the_help_describes_every_option_once() -> None:
    described = [spelling for _, rows in describe_options() for spelling, _ in rows]
    assert len(described) == len(OPTIONS)
    assert all(any(option.flags[0] in spelling for spelling in described) for option in OPTIONS)


def test_the_table_has_a_row_for_every_option() -> None:
    rows = readme_table().splitlines()[2:]
    assert len(rows) == len(OPTIONS)
    assert all(row.count("|") == 5 for row in rows)


def test_the_readme_is_replaced_between_its_markers_only() -> None:
    old = f"before\n{README_START}\nold\n{README_END}\nafter\n"
    new = replace_readme_table(old)
    assert new == f"before\n{README_START}\n{readme_table()}{README_END}\nafter\n"
    assert replace_readme_table(new) == new


@pytest.mark.parametrize("text", ["", README_START, README_END, f"{README_END}{README_START}"])
def test_a_readme_without_markers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="markers"):
        replace_readme_table(text)


def test_the_module_rewrites_a_readme(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{README_START}{README_END}")
    subprocess.run([sys.executable, "-m", "hvdrun.options", "--readme", readme], check=True, timeout=30, cwd=ROOT)
    assert readme_table() in readme.read_text()


def test_the_readme_has_this_table() -> None:
    """Where it does not: python -m hvdrun.options --readme README.md."""
    text = (ROOT / "README.md").read_text()
    assert replace_readme_table(text) == text
