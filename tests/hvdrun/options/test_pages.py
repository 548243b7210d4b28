"""The options for people: --help and the docs."""

from pathlib import Path

import pytest

from hvdrun.options.pages import TABLES, describe_options, render_table, replace_tables
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


PAGE = "\n".join(f"before {name}\n<!-- {name} -->\nold\n<!-- /{name} -->\nafter" for name in TABLES)


def test_a_page_is_replaced_between_its_markers_only() -> None:
    new = replace_tables(PAGE)
    for name, options in TABLES.items():
        assert f"before {name}\n<!-- {name} -->\n{render_table(options)}<!-- /{name} -->\nafter" in new
    assert replace_tables(new) == new


@pytest.mark.parametrize("text", ["", "<!-- options -->", "<!-- /options -->", "<!-- /options --><!-- options -->"])
def test_a_page_without_markers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="markers"):
        replace_tables(text)


def test_the_module_rewrites_a_page(tmp_path: Path) -> None:
    page = tmp_path / "options.md"
    page.write_text(PAGE)
    assert run_python("-m", "hvdrun.options", "--write", page).returncode == 0
    assert page.read_text() == replace_tables(PAGE)


def test_the_page_of_options_is_current() -> None:
    """Where it does not: python -m hvdrun.options --write docs/reference/options.md."""
    text = (ROOT / "docs" / "reference" / "options.md").read_text()
    assert replace_tables(text) == text
