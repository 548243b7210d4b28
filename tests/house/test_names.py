"""A room's name says what is in it. A test's name has a noun as its subject, and a noun at its end."""

import ast
import re

import pytest

from tests.house.sources import ROOT, find_python_files, read_sources

# Words that say nothing: whatever is put there would fit as well elsewhere.
HOROVODS = "shim/modules/horovod/"  # in there the names are Horovod's, by which programs import them
VAGUE = frozenset({"util", "utils", "utility", "utilities", "common", "helper", "helpers", "base", "manager", "misc"})

# Names that begin so have no noun as their subject: `test_what_is_wrong_is_refused`, `test_it_ends`.
PRONOUN = re.compile(
    r"test_(what(ever)?|who(m|se|ever)?|why|how|whether|to|nothing|its?|they|their|them|those|he|she|others|so|there|here|neither|none"
    r"|(some|any|every|no)(body|one)|(some|any|every)thing"
    r"|one_of_(them|these|those|which)|(all|both|each|few|many|one|several|some)_(is|are|was|were|has|have|that|who|does|do|can|cannot|may|begin|hear))_"
)

# Words that a test's name does without. A message is reported, a wait is for no rank, a program continues.
CHATTY = re.compile(r"_(told|tells?|telling|(some|every|no)body|whoever|goes_on|go_on|at_once|thrown_away)(?=_|$)")

# Names that end so, or have this in their middle, lack a noun: `test_a_file_without_lines_has_none`.
OPEN_END = re.compile(r"test_\w+_(none|there|so|then|that)$|test_\w+_what_(it|they)_")


def find_vague_parts(name: str) -> frozenset[str]:
    """The words of a path, file endings left out, that name no thing."""
    words = name.partition(HOROVODS)[0].removesuffix(".py").replace("/", "_").split("_")
    return VAGUE.intersection(words)


def test_no_room_has_a_vague_name() -> None:
    files = find_python_files()
    assert len(files) > len(list(ROOT.glob("hvdrun/*.py"))), "the search found too few files to mean anything"
    assert {str(path): vague for path in files if (vague := find_vague_parts(str(path)))} == {}


@pytest.mark.parametrize("name", ["hvdrun/util.py", "hvdrun/common/hosts.py", "hvdrun/job_manager.py", "tests/base.py"])
def test_a_vague_name_is_caught(name: str) -> None:
    assert find_vague_parts(name)


def test_horovods_own_names_are_served() -> None:
    assert not find_vague_parts("hvdrun/shim/modules/horovod/common/util.py")
    assert find_vague_parts("hvdrun/common/shim/modules/horovod/torch.py")


def test_a_name_that_only_contains_such_letters_is_fine() -> None:
    assert not find_vague_parts("hvdrun/database.py")


def find_pronouns(source: str) -> list[str]:
    """The tests of a module whose names begin with a pronoun, lack a noun at their end, or have a chatty word."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    names = [node.name for node in functions]
    return [name for name in names if PRONOUN.match(f"{name}_") or OPEN_END.match(name) or is_chatty(name)]


def is_chatty(name: str) -> bool:
    """Whether the name of a test has a word of talk."""
    return name.startswith("test_") and CHATTY.search(name) is not None


def test_each_test_name_has_a_noun_as_its_subject() -> None:
    found = {str(path): find_pronouns(source) for path, source in read_sources("tests")}
    assert len(found) > 1, "the search found too few files to mean anything"
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "name",
    [
        *("what_cannot", "it_ends", "whoever_asks_gets_it", "all_are_named", "one_that_dies_is", "nothing_is_left"),
        *("why_a_job_ends", "how_it_ends", "to_find_a_handle_is_quick", "whether_to_wait", "one_of_them_is_named"),
    ],
)
def test_a_name_that_begins_with_a_pronoun_is_caught(name: str) -> None:
    assert find_pronouns(f"async def test_{name}(): ...") == [f"test_{name}"]


@pytest.mark.parametrize("name", ["a_file_has_none", "an_agent_says_so", "a_call_does_what_it_promises"])
def test_a_name_that_lacks_a_noun_at_its_end_is_caught(name: str) -> None:
    assert find_pronouns(f"def test_{name}(): ...") == [f"test_{name}"]


@pytest.mark.parametrize("name", ["a_job_is_told", "a_line_tells_why", "a_worker_goes_on", "a_rank_waits_for_nobody"])
def test_a_chatty_word_in_a_name_is_caught(name: str) -> None:
    assert find_pronouns(f"def test_{name}(): ...") == [f"test_{name}"]
    assert not find_pronouns(f"def {name}(): ...")


@pytest.mark.parametrize("name", ["a_worker_ends", "each_worker_ends", "one_worker_ends", "items_are_read"])
def test_a_name_that_begins_with_a_noun_is_fine(name: str) -> None:
    assert not find_pronouns(f"def test_{name}(): ...")
