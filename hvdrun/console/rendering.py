"""Renders for a terminal. The only file that knows rich, and read only when there is something to render."""

from io import StringIO

from rich.console import Console
from rich.text import Text

from hvdrun.console.page import Page, compose_page


def colour_page(page: Page) -> str:
    """The page with a terminal's colours, ending with a newline; lines are left to the terminal to wrap."""
    buffer = StringIO()
    console = Console(
        file=buffer, force_terminal=True, color_system="standard", no_color=False, highlight=False, emoji=False
    )
    for text, tone in compose_page(page):
        console.print(Text(text, style=tone.value), soft_wrap=True)
    return buffer.getvalue()


def render_status(text: str, columns: int, *, coloured: bool) -> str:
    """A text in one line, cut where it would be longer than so many columns; it ends without a newline."""
    buffer = StringIO()
    console = Console(
        file=buffer,
        force_terminal=True,
        color_system="standard" if coloured else None,
        no_color=False,
        highlight=False,
        emoji=False,
        width=columns,
    )
    console.print(Text(text, style="cyan" if coloured else ""), no_wrap=True, overflow="ellipsis", end="")
    return buffer.getvalue()
