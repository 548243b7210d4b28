"""The page of `man hvdrun` is made from the table of options, and the one that the wheel brings is current."""

from hvdrun.cli.man import render
from hvdrun.options.table import OPTIONS
from tests.house.sources import ROOT


def test_the_page_that_is_installed_is_current() -> None:
    assert (ROOT / "docs" / "hvdrun.1").read_text(encoding="utf-8") == render(), "python -m hvdrun.cli.man --write"


def test_every_option_stands_on_it_as_it_is_typed() -> None:
    page = render().replace(r"\-", "-")
    assert [flag for option in OPTIONS for flag in option.flags if flag not in page] == []
    assert "[arguments]" in page.replace(r"\fI", "").replace(r"\fR", "")


def test_no_text_is_taken_for_a_request() -> None:
    requests = {line.split()[0] for line in render().splitlines() if line.startswith((".", "'"))}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".B"}
