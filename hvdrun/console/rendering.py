"""Colours the first-cause page for a terminal. The only file that knows rich, and read only when a page is coloured."""

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
