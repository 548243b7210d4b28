"""The options for people: --help and the docs."""

from pathlib import Path

import pytest

from hvdrun.options.pages import TABLE_END, TABLE_START, describe_options, render_table, replace_table
from hvdrun.options.table import OPTIONS
from tests.house.sources import ROOT
from tests.hvdrun.interpreter import run_python


def test_the_help_describes_every_option_once() -> None:
    described = [spelling for _, rows in describe_options() for spelling, _ in rows]
    assert len(described) == len(OPTIONS)
    assert all(any(option.flags[0] in spelling for spelling in described) for option in OPTIONS)


def test_where_a_value_comes_from_when_it_is_not_given_is_a_sentence() -> None:
    texts = dict(row for _, rows in describe_options() for row in rows)
    assert texts["--backend NAME"].endswith("torch lacks is refused. Or $HVD_BACKEND.")
    assert texts["--start-timeout TIME"].endswith("have joined. Default 120s, or $HOROVOD_START_TIMEOUT.")
    assert texts["--grace TIME"].endswith("the job ends early. Default 5s.")


def test_the_table_has_a_row_for_every_option() -> None:
    rows = render_table().splitlines()[2:]
    assert len(rows) == len(OPTIONS)
    assert all(row.count("|") == 5 for row in rows)


def test_the_readme_is_replaced_between_its_markers_only() -> None:
    old = f"before\n{TABLE_START}\nold\n{TABLE_END}\nafter\n"
    new = replace_table(old)
    assert new == f"before\n{TABLE_START}\n{render_table()}{TABLE_END}\nafter\n"
    assert replace_table(new) == new


@pytest.mark.parametrize("text", ["", TABLE_START, TABLE_END, f"{TABLE_END}{TABLE_START}"])
def test_a_readme_without_markers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="markers"):
        replace_table(text)


def test_the_module_rewrites_a_readme(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{TABLE_START}{TABLE_END}")
    assert run_python("-m", "hvdrun.options", "--write", readme).returncode == 0
    assert render_table() in readme.read_text()


def test_the_readme_has_this_table() -> None:
    """Where it does not: python -m hvdrun.options --write docs/reference/options.md."""
    text = (ROOT / "docs" / "reference" / "options.md").read_text()
    assert replace_table(text) == text
