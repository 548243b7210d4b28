"""A docstring begins with the thing that it is about, and not with a pronoun whose noun is elsewhere."""

import ast
import re

import pytest

from tests.house.sources import read_sources

FOLDERS = ("hvdrun", "rendezvous", "worker_runtime", "tests")
# `Whether the process runs.` says what `It runs.` leaves to the reader.
PRONOUN = re.compile(r"(It|Its|They|Them|Their|Those|Both|He|She|One (that|who)|That (of|is|was|has|are))\b")
# Files whose docstrings are mended next; then this set is removed.
UNMENDED = {
    "hvdrun/agent/live_worker.py",
    "hvdrun/processes/child.py",
    "hvdrun/spec/jobspec.py",
    "rendezvous/bootstrap.py",
    "rendezvous/core/messages.py",
    "tests/rendezvous/core/checker.py",
    "tests/rendezvous/stage.py",
    "tests/worker_runtime/coordination/sequencer/test_generation.py",
    "tests/worker_runtime/reduction/gradients.py",
}
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def find_docstrings(source: str) -> list[str]:
    """The first lines of docstrings that begin with a pronoun."""
    documented = (node for node in ast.walk(ast.parse(source)) if isinstance(node, _Documented))
    docstrings = (ast.get_docstring(node) or "" for node in documented)
    return [docstring.partition("\n")[0] for docstring in docstrings if PRONOUN.match(docstring)]


def test_each_docstring_begins_with_a_noun_or_a_verb() -> None:
    found = {str(path): find_docstrings(source) for path, source in read_sources(*FOLDERS)}
    assert len(found) > 1, "the search found too few files to mean anything"
    assert {path: lines for path, lines in found.items() if lines and path not in UNMENDED} == {}


@pytest.mark.parametrize("text", ["It runs.", "Its pid.", "Those that train.", "That of rank 0.", "Both ends."])
def test_a_docstring_that_begins_with_a_pronoun_is_caught(text: str) -> None:
    assert find_docstrings(f'async def f():\n    """{text}\n\n    More."""\n') == [text]


@pytest.mark.parametrize("text", ["Whether it runs.", "This worker's rank.", "One worker.", "Items of a list."])
def test_a_docstring_that_begins_with_a_noun_is_fine(text: str) -> None:
    assert find_docstrings(f'class A:\n    """{text}"""\n') == []
