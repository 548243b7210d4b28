"""The table of options for people: the lines of --help, and the table in the docs."""

from collections.abc import Iterator, Sequence

from hvdrun.options.option import Option
from hvdrun.options.programs import AGENT, TOKEN
from hvdrun.options.table import OPTIONS, TABLE

# By the name that stands in the markers of a page.
TABLES = {"options": OPTIONS, "options of agent": AGENT, "options of token": TOKEN}


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


def render_table(options: Sequence[Option] = OPTIONS) -> str:
    """A table of options, in Markdown."""
    lines = ["| option | meaning | default | environment |", "|---|---|---|---|"]
    for option in options:
        first, *others = option.flags
        spellings = ", ".join([f"`{f'{first} {option.metavar}'.rstrip()}`", *(f"`{flag}`" for flag in others)])
        variable = f"`{option.environment}`" if option.environment else ""
        lines.append(f"| {spellings} | {option.help} | {option.default or ''} | {variable} |")
    return "\n".join(lines) + "\n"


def replace_tables(page: str) -> str:
    """The page with the tables between their markers made anew.

    Raises:
        ValueError: some markers are not there, once and in order.
    """
    for name, options in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, has_start, rest = page.partition(start)
        _, has_end, after = rest.partition(end)
        if not has_start or not has_end:
            raise ValueError(f"the markers {start} and {end} are missing")
        page = f"{before}{start}\n{render_table(options)}{end}{after}"
    return page
