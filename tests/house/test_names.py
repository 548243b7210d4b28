"""A room's name says what is in it."""

import pytest

from tests.house.sources import ROOT, find_python_files

# These say nothing: whatever is put there would fit as well elsewhere.
HOROVODS = "shim/modules/horovod/"  # in there the names are Horovod's, by which programs import them
VAGUE = frozenset({"util", "utils", "utility", "utilities", "common", "helper", "helpers", "base", "manager", "misc"})


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
