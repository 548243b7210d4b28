"""The options for people: --help and the README."""

from pathlib import Path

import pytest

from hvdrun.options.pages import README_END, README_START, describe_options, readme_table, replace_readme_table
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
    assert run_python("-m", "hvdrun.options", "--readme", readme).returncode == 0
    assert readme_table() in readme.read_text()


def test_the_readme_has_this_table() -> None:
    """Where it does not: python -m hvdrun.options --readme README.md."""
    text = (ROOT / "README.md").read_text()
    assert replace_readme_table(text) == text
