"""`docs/options.py`: the tables of options in the documentation, and the manual page."""

import runpy
import subprocess
import sys

import pytest

from hvdrun.options.table import OPTIONS
from tests.house.sources import ROOT

DOCS = runpy.run_path(str(ROOT / "docs" / "options.py"))
MANUAL = DOCS["render_manual"]()
PAGE = "\n".join(f"before {name}\n<!-- {name} -->\nold\n<!-- /{name} -->\nafter" for name in DOCS["TABLES"])


def test_the_pages_in_docs_are_current() -> None:
    run = subprocess.run([sys.executable, "docs/options.py", "--check"], cwd=ROOT, check=False, timeout=60)
    assert run.returncode == 0, "run python docs/options.py"


def test_the_table_has_a_row_for_every_option() -> None:
    rows = DOCS["render_table"]().splitlines()[2:]
    assert len(rows) == len(OPTIONS)
    assert all(row.count("|") == 5 for row in rows)


def test_a_page_is_replaced_between_its_markers_only() -> None:
    new = DOCS["replace_tables"](PAGE)
    for name, options in DOCS["TABLES"].items():
        assert f"before {name}\n<!-- {name} -->\n{DOCS['render_table'](options)}<!-- /{name} -->\nafter" in new
    assert DOCS["replace_tables"](new) == new


@pytest.mark.parametrize("text", ["", "<!-- options -->", "<!-- /options -->", "<!-- /options --><!-- options -->"])
def test_a_page_without_markers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="markers"):
        DOCS["replace_tables"](text)


def test_the_manual_page_has_every_flag_as_it_is_typed() -> None:
    page = MANUAL.replace(r"\-", "-")
    assert [flag for option in OPTIONS for flag in option.flags if flag not in page] == []
    assert "[arguments]" in page.replace(r"\fI", "").replace(r"\fR", "")


def test_no_text_of_the_manual_page_is_a_request_of_roff() -> None:
    requests = {line.split()[0] for line in MANUAL.splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".B"}
