"""`python docs/options.py`: writes the tables of docs/reference/options.md, and the manual page docs/hvdrun.1.

With `--check` it writes nothing, and exits with 1 where one of them is out of date.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from hvdrun.options.option import Option
from hvdrun.options.pages import ABOUT, EXAMPLES, EXIT_CODES, PROGRAMS, Rows, describe_all
from hvdrun.options.programs import AGENT, DOCTOR, JOB_PROGRAMS, STACKS, TIMELINE, TOKEN
from hvdrun.options.table import OPTIONS

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference" / "options.md"
MANUAL = ROOT / "docs" / "hvdrun.1"
# By the name in the markers of the page.
TABLES = {
    "options": OPTIONS,
    "options of agent": AGENT.options,
    "options of doctor": DOCTOR.options,
    "options of stacks": STACKS.options,
    "options of timeline": TIMELINE.options,
    "options of token": TOKEN.options,
    **{f"options of {name}": program.options for name, program in JOB_PROGRAMS.items()},
}


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
    """The page with new tables between its markers.

    Raises:
        ValueError: a pair of markers is missing, or in the wrong order.
    """
    for name, options in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, has_start, rest = page.partition(start)
        _, has_end, after = rest.partition(end)
        if not has_start or not has_end:
            raise ValueError(f"the markers {start} and {end} are missing")
        page = f"{before}{start}\n{render_table(options)}{end}{after}"
    return page


def render_manual() -> str:
    """The page of `man hvdrun`, in the language of man(7)."""
    parts = [
        '.TH HVDRUN 1 "" hvdrun',
        ".SH NAME",
        r"hvdrun \- start the workers of a distributed training, and keep them running",
        ".SH SYNOPSIS",
        r".B hvdrun",
        r"[\fIoptions\fR] \fICOMMAND\fR [\fIarguments\fR]",
        ".SH DESCRIPTION",
        _escape(ABOUT),
        ".SH OPTIONS",
    ]
    for heading, rows in describe_all():
        parts += [f".SS {_escape(heading)}", *_list_rows(rows)]
    parts += [".SH PROGRAMS", *_list_rows((f"hvdrun {names}", meaning) for names, meaning in PROGRAMS)]
    parts += [".SH EXAMPLES", *_list_rows(EXAMPLES), ".SH EXIT STATUS", *_list_rows(EXIT_CODES)]
    return "\n".join(parts) + "\n"


def _list_rows(rows: Rows) -> Iterator[str]:
    for term, meaning in rows:
        yield from (".TP", rf"\fB{_escape(term)}\fR", _escape(meaning))


def _escape(text: str) -> str:
    """The text for roff, which keeps each dash as typed and takes no line for a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


if __name__ == "__main__":
    present = {page: page.read_text(encoding="utf-8") for page in (REFERENCE, MANUAL)}
    current = {REFERENCE: replace_tables(present[REFERENCE]), MANUAL: render_manual()}
    if "--check" in sys.argv:
        sys.exit(int(current != present))
    for page, text in current.items():
        page.write_text(text, encoding="utf-8")
