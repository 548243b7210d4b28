"""The table of options for people: the pages of --help, and the README's table."""

import shutil
from collections.abc import Iterable, Iterator
from textwrap import fill

from hvdrun.options.option import Option
from hvdrun.options.table import OPTIONS, TABLE

README_START = "<!-- options -->"
README_END = "<!-- /options -->"


_LEAST_WIDTH, _MOST_WIDTH = 50, 78
_MOST_OF_FIRST = 34  # columns of a table's first column


def render_help(
    usage: str, about: str, tables: Iterable[tuple[str, Iterable[tuple[str, str]]]], *, indent: int = 0
) -> str:
    """A page of --help, as wide as the terminal.

    Args:
        usage: the words of a command line.
        about: what the program does.
        tables: each with its heading; two columns.
        indent: of what it does.
    """
    width = max(min(shutil.get_terminal_size().columns - 2, _MOST_WIDTH), _LEAST_WIDTH)
    margin = " " * indent
    text = fill(about, width, initial_indent=margin, subsequent_indent=margin)
    parts = [f"Usage: {usage}", text, *(_render_table(heading, list(rows), width) for heading, rows in tables)]
    return "\n\n".join(parts)


def _render_table(heading: str, rows: list[tuple[str, str]], width: int) -> str:
    start = min(max(len(first) for first, _ in rows), _MOST_OF_FIRST) + 4
    lines = [f"{heading}:"]
    for first, second in rows:
        text = fill(second, width, initial_indent=" " * start, subsequent_indent=" " * start)
        is_beside = len(first) <= start - 4
        lines += [f"  {first:{start - 2}}{text[start:]}"] if is_beside else [f"  {first}", text]
    return "\n".join(lines)


def describe_options() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """For each group its heading, and its options' spellings and meanings, for --help."""
    for group, options in TABLE.items():
        yield group.value, [(spell(option), _explain(option)) for option in options]


def spell(option: Option) -> str:
    """All spellings of an option, and what its value stands for."""
    return f"{', '.join(option.flags)} {option.metavar}".rstrip()


def _explain(option: Option) -> str:
    sources = ([f"default {option.default}"] if option.default else []) + (
        [f"or ${option.environment}"] if option.environment else []
    )
    text = ", ".join(sources)
    return f"{option.help} {text[0].upper()}{text[1:]}." if text else option.help


def readme_table() -> str:
    """The README's table of options, in Markdown."""
    lines = ["| option | meaning | default | environment |", "|---|---|---|---|"]
    for option in OPTIONS:
        first, *others = option.flags
        spellings = ", ".join([f"`{f'{first} {option.metavar}'.rstrip()}`", *(f"`{flag}`" for flag in others)])
        variable = f"`{option.environment}`" if option.environment else ""
        lines.append(f"| {spellings} | {option.help} | {option.default or ''} | {variable} |")
    return "\n".join(lines) + "\n"


def replace_readme_table(readme: str) -> str:
    """The README with the table between its markers made anew.

    Raises:
        ValueError: the markers are not there, once and in order.
    """
    before, start, rest = readme.partition(README_START)
    _, end, after = rest.partition(README_END)
    if not start or not end:
        raise ValueError(f"the markers {README_START} and {README_END} are missing")
    return f"{before}{start}\n{readme_table()}{end}{after}"
