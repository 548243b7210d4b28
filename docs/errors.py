"""`python docs/errors.py`: writes the messages of docs/operating/troubleshooting.md, from docstrings.

With `--check` it writes nothing, and exits with 1 where the page is out of date.

The docstring of an error class, or of a function that composes a message, has lines that begin with `Cause:` and
`Remedy:`: a row of the page. `Message:` before them is what a person sees, with a name in capitals for each value.
Without it, the message is the one in the constructor. A class without a sentence of its own is shown by its name.
"""

import ast
import html
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operating" / "troubleshooting.md"
START, END = "<!-- errors -->", "<!-- /errors -->"
PACKAGES = ("hvdrun", "rendezvous", "worker_runtime")
HEADINGS = {
    "Reaching other hosts": ("hvdrun/transport", "hvdrun/network", "hvdrun/hosts/network_plan.py"),
    "Agents that join by themselves": ("hvdrun/joining",),
    "Starting a job": ("hvdrun/errors.py", "hvdrun/options", "hvdrun/spec", "hvdrun/hosts", "hvdrun/agent"),
    "While a job runs": ("hvdrun/hangs", "hvdrun/jobs", "rendezvous/journal"),
    "When a worker or a job ends": (
        "hvdrun/accounts",
        "hvdrun/console",
        "rendezvous/core/outcome.py",
        "rendezvous/core/explanation.py",
    ),
    "Running functions from Python": ("hvdrun/cluster", "hvdrun/testing", "rendezvous/wire/tasks.py"),
    "In the worker, when it joins": ("rendezvous", "hvdrun/shim"),
    "In the worker": ("worker_runtime",),
}

# What the page calls a value whose own name says little to a person.
NAMES = {
    "__name__": "type",
    "describe_expiry": "time",
    "executable": "python",
    "parent": "folder",
    "strerror": "reason",
    "task": "do something",
}


# A row in a docstring. Further lines of a message are indented.
_MESSAGE = re.compile(r"^Message: ([^\n]*(?:\n +[^\n]*)*)\n", re.MULTILINE)
_ROW = re.compile(rf"((?:{_MESSAGE.pattern})*)^Cause: (.*?)^Remedy: (.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef


class Explained(NamedTuple):
    """One row of the page."""

    message: str
    cause: str
    remedy: str


def find_definitions() -> Iterator[tuple[str, Definition]]:
    """All classes and functions of the project, each with the path of its file."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef):
                    yield str(path.relative_to(ROOT)), node


def explain(node: Definition) -> list[Explained]:
    """The rows in the docstring of a class or function."""
    rows = []
    for messages, _, *rest in _ROW.findall(ast.get_docstring(node) or ""):
        cause, remedy = map(_unwrap, rest)
        shown = list_messages(messages) or [_derive_message(node)]
        rows.append(Explained("<br>".join(f"`{message}`" for message in shown), cause, remedy))
    return rows


def list_messages(docstring: str) -> list[str]:
    """The messages that a docstring gives."""
    return [_unwrap(message) for message in _MESSAGE.findall(docstring)]


def _unwrap(text: str) -> str:
    return " ".join(text.split())


def _derive_message(node: Definition) -> str:
    """The sentence in a class's constructor; the name of a class without one, as a traceback shows it."""
    choices = dict(filter(None, map(_find_choice, ast.walk(node))))
    message = next(filter(None, (_read_message(each, choices) for each in ast.walk(node))), None)
    return message or f"{node.name}: ..."


def _find_choice(node: ast.AST) -> tuple[str, ast.IfExp] | None:
    """A name that gets one of two pieces of the sentence, and these."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.IfExp() as choice):
            return name, choice
        case _:
            return None


def _read_message(node: ast.AST, choices: Mapping[str, ast.IfExp]) -> str:
    """The sentence that a call of `super().__init__` is given; "" where this is no such call, or it is made before."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"), args=[*_, last]):
            text = _read_text(last, choices)
        case _:
            return ""
    is_sentence = re.search("[a-z]{2,} [a-z]", text) is not None
    return _unwrap(text) if is_sentence else ""


def _read_text(node: ast.AST, choices: Mapping[str, ast.IfExp]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            text = ""
            for part in parts:  # a value right after a word is a part of the sentence that may be missing
                piece = _choose(part, choices)
                is_appended = isinstance(part, ast.FormattedValue) and (text[-1:].isalnum() or text[-1:] == ")")
                text += ("" if is_appended else _read_text(part, choices)) if piece is None else piece
            return text
        case ast.FormattedValue(value=value):
            return _name_value(value)
        case _:
            return ""


def _choose(node: ast.AST, choices: Mapping[str, ast.IfExp]) -> str | None:
    """The longer of the two pieces of the sentence that a value may be; None for another value."""
    match node:
        case ast.FormattedValue(value=ast.Name(id=name)) if name in choices:
            choice = choices[name]
        case ast.FormattedValue(value=ast.IfExp() as choice):
            pass
        case _:
            return None
    pieces = (choice.body, choice.orelse)
    if not all(isinstance(piece, ast.Constant | ast.JoinedStr) for piece in pieces):
        return None
    return max((_read_text(piece, choices) for piece in pieces), key=len)


def _name_value(value: ast.AST) -> str:
    """What stands for a value: its name in capitals."""
    match value:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Attribute(attr=name) | ast.Name(id=name) if name in NAMES:
            return NAMES[name].upper()
        case ast.Attribute(attr=name) if not name.startswith("_"):
            return name.upper()
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=number)):
            return f"{_name_value(left)} - {number}"
    named = [name for name in map(_name, ast.walk(value)) if name]
    return named[-1].upper() if named else "..."


def _name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) if name not in {"str", "repr", "len", "map", "self"}:
            return name.strip("_")
        case _:
            return ""


def render() -> str:
    """The messages by heading, in Markdown."""
    known = [(path, explained) for path, node in find_definitions() for explained in explain(node)]
    lines: list[str] = []
    for heading, listed in _sort(known).items():
        lines += [f"### {heading}", "", "| message | cause | what to do |", "|---|---|---|"]
        lines += [f"| {' | '.join(map(escape_pipes, explained))} |" for explained in listed]
        lines.append("")
    return "\n".join(lines)


def escape_pipes(text: str) -> str:
    """Escape what would divide a cell of a table. Within backticks nothing can be escaped: such code becomes HTML."""
    text = re.sub(r"`([^`]*\|[^`]*)`", lambda code: f"<code>{html.escape(code[1], quote=False)}</code>", text)
    return text.replace("|", "&#124;")


def _sort(known: list[tuple[str, Explained]]) -> Mapping[str, list[Explained]]:
    sorted_: dict[str, list[Explained]] = {heading: [] for heading in HEADINGS}
    for path, explained in known:
        heading = next(name for name, places in HEADINGS.items() if path.startswith(places))
        if explained not in sorted_[heading]:
            sorted_[heading].append(explained)
    return sorted_


def replace_messages(page: str) -> str:
    """The page with what stands between its markers made anew."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{render()}{END}{after}"


if __name__ == "__main__":
    present = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        sys.exit(int(replace_messages(present) != present))
    PAGE.write_text(replace_messages(present), encoding="utf-8")
