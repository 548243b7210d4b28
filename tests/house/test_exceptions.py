"""Every exception from a rule of ruff, mypy or pytest names the rule, and gives its reason."""

import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.house.sources import ROOT, read_sources

CODES = r"[A-Z]+[0-9]+(?:, [A-Z]+[0-9]+)*"
NOQA = re.compile(rf"noqa: {CODES} - \S.{{3,}}")
IGNORE = re.compile(r"type: ignore\[[a-z-]+(?:, ?[a-z-]+)*\]\s+# (?P<reason>\S.{3,})")
ENTRY = re.compile(r'^\s*"(?P<entry>[^"]+)",(?P<reason>\s+# \S.*)?$')
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
