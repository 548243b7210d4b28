"""`python -m hvdrun.cli.man --write docs/hvdrun.1` writes the page of `man hvdrun`, from the table of options."""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from hvdrun.cli.parsing import ABOUT, EXAMPLES, EXIT_CODES
from hvdrun.options.pages import describe_options


def render() -> str:
    """The page, in the language of man(7)."""
    parts = [
        '.TH HVDRUN 1 "" hvdrun',
        ".SH NAME",
        r"hvdrun \- start the workers of a distributed training, and keep them going",
        ".SH SYNOPSIS",
        r".B hvdrun",
        r"[\fIoptions\fR] \fICOMMAND\fR [\fIarguments\fR]",
        ".SH DESCRIPTION",
        _escape(ABOUT),
        ".SH OPTIONS",
    ]
    for heading, rows in describe_options():
        parts += [f".SS {_escape(heading)}", *_list(rows)]
    parts += [".SH EXAMPLES", *_list(EXAMPLES), ".SH EXIT STATUS", *_list(EXIT_CODES)]
    return "\n".join(parts) + "\n"


def _list(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, meaning in rows:
        yield from (".TP", rf"\fB{_escape(term)}\fR", _escape(meaning))


def _escape(text: str) -> str:
    """The text as roff prints it: a dash can be typed again, and no line is taken for a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write", name]:
            Path(name).write_text(render(), encoding="utf-8")
        case _:
            sys.exit("usage: python -m hvdrun.cli.man --write docs/hvdrun.1")
