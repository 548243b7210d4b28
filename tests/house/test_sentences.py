"""A docstring or a comment begins with the thing that it is about, and not with a pronoun whose noun is elsewhere."""

import ast
import io
import re
import tokenize

import pytest

from tests.house.sources import read_sources

FOLDERS = ("hvdrun", "rendezvous", "worker_runtime", "tests")
# `Whether the process runs.` says what `It runs.` leaves to the reader.
PRONOUN = re.compile(r"(It|Its|They|Them|Their|Those|Both|He|She|One (that|who)|That (of|is|was|has|are))\b")
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find_docstrings(source: str) -> list[str]:
    """The first lines of docstrings that begin with a pronoun."""
    documented = (node for node in ast.walk(ast.parse(source)) if isinstance(node, _Documented))
    docstrings = (ast.get_docstring(node) or "" for node in documented)
    return [docstring.partition("\n")[0] for docstring in docstrings if PRONOUN.match(docstring)]


def find_comments(source: str) -> list[str]:
    """The first lines of comments that begin with a pronoun; a comment behind code is about that code."""
    found, last = [], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.line[: token.start[1]].strip():
            continue
        text, line = token.string.removeprefix("#").strip(), token.start[0]
        if line != last + 1 and PRONOUN.match(text):
            found.append(text)
        last = line
    return found


def test_each_docstring_begins_with_a_noun_or_a_verb() -> None:
    found = {str(path): find_docstrings(source) for path, source in read_sources(*FOLDERS)}
    assert len(found) > 1, "the search found too few files to mean anything"
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_each_comment_begins_with_a_noun_or_a_verb() -> None:
    found = {str(path): find_comments(source) for path, source in read_sources(*FOLDERS)}
    assert len(found) > 1, "the search found too few files to mean anything"
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("text", ["It runs.", "Its pid.", "Those that train.", "That of rank 0.", "Both ends."])
def test_a_docstring_that_begins_with_a_pronoun_is_caught(text: str) -> None:
    assert find_docstrings(f'async def f():\n    """{text}\n\n    More."""\n') == [text]


@pytest.mark.parametrize("text", ["Whether it runs.", "This worker's rank.", "One worker.", "Items of a list."])
def test_a_docstring_that_begins_with_a_noun_is_fine(text: str) -> None:
    assert find_docstrings(f'class A:\n    """{text}"""\n') == []


def test_the_first_line_of_a_comment_counts_alone() -> None:
    assert find_comments("# Its pid.\n# It runs.\nx = 1  # It lives.\n\n# The pid.\n# Both.\n") == ["Its pid."]
