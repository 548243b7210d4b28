"""The pages about options: --help, the tables in the docs, the manual page."""

from pathlib import Path

import pytest

from hvdrun.options.pages import (
    MANUAL,
    REFERENCE,
    TABLES,
    describe_all,
    render_manual,
    render_table,
    replace_tables,
)
from hvdrun.options.table import OPTIONS
from tests.house.sources import ROOT
from tests.hvdrun.interpreter import run_python


def test_the_help_describes_every_option_once() -> None:
    described = [spelling for _, rows in describe_all() for spelling, _ in rows]
    assert len(described) == len(OPTIONS)
    assert all(any(option.flags[0] in spelling for spelling in described) for option in OPTIONS)


def test_help_names_the_default_and_the_variable_of_an_option() -> None:
    texts = dict(row for _, rows in describe_all() for row in rows)
    assert texts["--backend NAME"].endswith("torch lacks is refused. Or $HVD_BACKEND.")
    assert texts["--start-timeout TIME"].endswith("at least --min-np. Default 120s, or $HOROVOD_START_TIMEOUT.")
    assert texts["--grace TIME"].endswith("to SIGKILL. Default 5s.")


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


def test_the_pages_in_docs_are_current() -> None:
    for page, text in (
        (REFERENCE, replace_tables((ROOT / REFERENCE).read_text(encoding="utf-8"))),
        (MANUAL, render_manual()),
    ):
        assert (ROOT / page).read_text(encoding="utf-8") == text, "run python -m hvdrun.options.pages"


def test_the_module_writes_both_pages(tmp_path: Path) -> None:
    (tmp_path / REFERENCE).parent.mkdir(parents=True)
    (tmp_path / REFERENCE).write_text(PAGE)
    assert run_python("-m", "hvdrun.options.pages", cwd=tmp_path).returncode == 0
    assert (tmp_path / REFERENCE).read_text() == replace_tables(PAGE)
    assert (tmp_path / MANUAL).read_text() == render_manual()


def test_the_manual_page_has_every_flag_as_it_is_typed() -> None:
    page = render_manual().replace(r"\-", "-")
    assert [flag for option in OPTIONS for flag in option.flags if flag not in page] == []
    assert "[arguments]" in page.replace(r"\fI", "").replace(r"\fR", "")


def test_roff_takes_no_text_of_the_manual_page_for_a_request() -> None:
    requests = {line.split()[0] for line in render_manual().splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".B"}
