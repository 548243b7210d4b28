"""Every exception from a rule of ruff, mypy or pytest names the rule and gives its reason; an ignored error has one."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.house.sources import PACKAGES, ROOT, read_sources

CODES = r"[A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)*"
# A reason stands where it is needed, and does not refer to another one.
REFERENCE = "(?i:(?!as above|as before|as in |as for |ditto|(the )?same|see |idem|likewise|like the))"
NOQA = re.compile(rf"noqa: {CODES} - {REFERENCE}\S.{{3,}}")
IGNORE = re.compile(rf"type: ignore\[[a-z-]+(?:, ?[a-z-]+)*\]\s+# {REFERENCE}(?P<reason>\S.{{3,}})")
REASON = re.compile(r"# (?!noqa)\S.{3,}")
ENTRY = re.compile(rf'^\s*"(?P<entry>[^"]+)",(?P<reason>\s+# {REFERENCE}\S.*)?$')
LISTS = (
    "ignore",
    '"tests/**"',
    '"examples/**"',
    '"benchmarks/**"',
    '"hvdrun/shim/modules/horovod/**"',
    "filterwarnings",
)
DEFAULT = "error"  # the rule itself, in filterwarnings


def find_unexplained_comments(source: str) -> Iterator[str]:
    """The comments that switch a rule off without naming it, or without a reason."""
    if "noqa" not in source and "type: ignore" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if "noqa" in token.string and not NOQA.search(token.string):
            yield token.string
        if "type: ignore" in token.string and not IGNORE.search(token.string):
            yield token.string


def find_unexplained_entries(toml: str) -> Iterator[str]:
    """The entries of lists of exceptions that have no reason behind them."""
    inside = False
    for line in toml.splitlines():
        opens = line.endswith("[") and line.partition(" = ")[0] in LISTS
        inside = opens or (inside and line != "]")
        entry = ENTRY.match(line)
        if inside and entry and not entry["reason"] and entry["entry"] != DEFAULT:
            yield entry["entry"]


def test_a_rule_switched_off_in_code_has_a_reason() -> None:
    unexplained = {str(path): list(find_unexplained_comments(source)) for path, source in read_sources()}
    assert {path: comments for path, comments in unexplained.items() if comments} == {}


def test_a_rule_switched_off_for_all_has_a_reason() -> None:
    toml = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f"\n{name} = [\n" in toml for name in LISTS), "a list of exceptions has another form, or is gone"
    assert list(find_unexplained_entries(toml)) == []


@pytest.mark.parametrize(
    "comment",
    [
        "noqa",
        "noqa: S101",
        "noqa: S101 -",
        "noqa - because",
        "noqa: S101 - as above",
        "noqa: S101 - ditto",
        "noqa: S101 - Same reason",
        "noqa: S101 - see the line before",
        "noqa: S101 - as in the function above",
        "type: ignore[misc]  # the same",
        "type: ignore",
        "type: ignore[misc]",
        "type: ignore[misc]  #",
    ],
)
def test_an_exception_without_a_rule_or_a_reason_is_caught(comment: str) -> None:
    assert list(find_unexplained_comments(f"x = 1  # {comment}\n")) == [f"# {comment}"]


@pytest.mark.parametrize(
    "comment",
    [
        "noqa: S101 - a reason",
        "noqa: S101, SLF001 - a reason",
        "type: ignore[misc]  # a reason",
        "type: ignore[misc]  # noqa: S101 - a reason",
    ],
)
def test_an_exception_with_both_is_accepted(comment: str) -> None:
    assert list(find_unexplained_comments(f"x = 1  # {comment}\n")) == []


def test_an_entry_without_a_reason_is_caught() -> None:
    toml = 'ignore = [\n  "A1",   # a reason\n  "A2",\n]\nselect = [\n  "ALL",\n]\n'
    assert list(find_unexplained_entries(toml)) == ["A2"]


def find_silent_errors(source: str) -> Iterator[str]:
    """The lines that ignore an error, or keep the errors of several tasks apart, without a reason beside them."""
    lines = source.splitlines()

    def has_reason(first: int, last: int) -> bool:
        return any(REASON.search(line) for line in lines[first - 1 : last])

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name("suppress") | ast.Attribute(attr="suppress")) | ast.keyword(
                "return_exceptions"
            ):
                first, last = node.lineno, node.lineno
            case ast.ExceptHandler(body=[ast.Pass() | ast.Continue() | ast.Break() | ast.Return(None) as only]):
                first, last = node.lineno, only.lineno
            case _:
                continue
        if not has_reason(first, last):
            yield lines[first - 1].strip()


def test_an_ignored_error_has_a_reason() -> None:
    unexplained = {str(path): list(find_silent_errors(source)) for path, source in read_sources(*PACKAGES)}
    assert {path: lines for path, lines in unexplained.items() if lines} == {}


@pytest.mark.parametrize(
    "lines",
    [
        "with suppress(OSError):\n    f()",
        "with contextlib.suppress(OSError), g():  # noqa: S101 - of a rule\n    f()",
        "try:\n    f()\nexcept OSError:\n    pass",
        "try:\n    f()\nexcept OSError:\n    return",
        "gather(f(), return_exceptions=True)",
    ],
)
def test_an_ignored_error_without_a_reason_is_caught(lines: str) -> None:
    assert len(list(find_silent_errors(lines))) == 1


@pytest.mark.parametrize(
    "lines",
    [
        "with suppress(OSError):  # it has ended\n    f()",
        "try:\n    f()\nexcept OSError:\n    pass  # it has ended",
        "try:\n    f()\nexcept OSError:\n    return None",
        "gather(f(), return_exceptions=True)  # the first is raised",
    ],
)
def test_an_ignored_error_with_a_reason_is_accepted(lines: str) -> None:
    assert list(find_silent_errors(lines)) == []
