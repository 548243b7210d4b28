"""The first-cause page on a terminal."""

import pytest

from hvdrun.console.page import Page, render_page, strip_controls
from rendezvous.core.model import Slot, Worker

PAGE = Page(
    rank=1,
    worker=Worker(Slot("server1", 1), 1),
    returncode=-9,
    last_lines=("[bold]not markup[/bold] :smile:", "x" * 300, "'text' 123 http://example.org"),
    ended_ranks=(0,),
)


def test_a_coloured_page_has_the_same_words_as_a_plain_one() -> None:
    assert strip_controls(render_page(PAGE, coloured=True).replace("\n", "\t")) == render_page(PAGE).replace("\n", "\t")


def test_the_headline_is_red() -> None:
    assert render_page(PAGE, coloured=True).startswith("\x1b[1;31mhvdrun: rank 1 on server1 (slot 1) failed first")


def test_a_rendering_does_not_decide_whether_to_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[33m" in render_page(PAGE, coloured=True)
