"""The first-cause page and the status line on a terminal."""

import pytest

from hvdrun.console.page import Page, colour_page, render_page, strip_controls
from hvdrun.console.start_line import render_status

PAGE = Page(
    rank=1,
    host="server1",
    returncode=-9,
    last_lines=("[bold]not markup[/bold] :smile:", "x" * 300, "'text' 123 http://example.org"),
    ended_ranks=(0,),
)


def test_a_coloured_page_has_the_same_words_as_a_plain_one() -> None:
    assert strip_controls(colour_page(PAGE).replace("\n", "\t")) == render_page(PAGE).replace("\n", "\t")


def test_the_headline_is_red() -> None:
    assert colour_page(PAGE).startswith("\x1b[1;31mhvdrun: rank 1 on server1 failed first")


def test_whether_to_colour_is_not_decided_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[33m" in colour_page(PAGE)


@pytest.mark.parametrize("columns", [30, 31, 100])
def test_a_status_is_one_line_that_fits(columns: int) -> None:
    text = "hosts connected 1/2, [bold]x :smile:"
    shown = render_status(text, columns, coloured=False)
    assert shown == (text if len(text) <= columns else text[: columns - 1] + "…")


def test_a_status_has_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert render_status("x", 10, coloured=True) == "\x1b[36mx\x1b[0m"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert render_status("x", 10, coloured=False) == "x"
