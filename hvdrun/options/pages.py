"""The table of options for people: the lines of --help, and the table in the docs."""

from collections.abc import Iterator

from hvdrun.options.option import Option
from hvdrun.options.table import OPTIONS, TABLE

TABLE_START = "<!-- options -->"
TABLE_END = "<!-- /options -->"


def describe_options() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """For each group its heading, and its options' spellings and meanings, for --help."""
    for group, options in TABLE.items():
        yield group.value, [(_spell(option), _explain(option)) for option in options]


def _spell(option: Option) -> str:
    return f"{', '.join(option.flags)} {option.metavar}".rstrip()


def _explain(option: Option) -> str:
    sources = ([f"default {option.default}"] if option.default else []) + (
        [f"or ${option.environment}"] if option.environment else []
    )
    text = ", ".join(sources)
    return f"{option.help} {text[0].upper()}{text[1:]}." if text else option.help


def render_table() -> str:
    """The table of options, in Markdown."""
    lines = ["| option | meaning | default | environment |", "|---|---|---|---|"]
    for option in OPTIONS:
        first, *others = option.flags
        spellings = ", ".join([f"`{f'{first} {option.metavar}'.rstrip()}`", *(f"`{flag}`" for flag in others)])
        variable = f"`{option.environment}`" if option.environment else ""
        lines.append(f"| {spellings} | {option.help} | {option.default or ''} | {variable} |")
    return "\n".join(lines) + "\n"


def replace_table(page: str) -> str:
    """The page with the table between its markers made anew.

    Raises:
        ValueError: the markers are not there, once and in order.
    """
    before, start, rest = page.partition(TABLE_START)
    _, end, after = rest.partition(TABLE_END)
    if not start or not end:
        raise ValueError(f"the markers {TABLE_START} and {TABLE_END} are missing")
    return f"{before}{start}\n{render_table()}{end}{after}"
