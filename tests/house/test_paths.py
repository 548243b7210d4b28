"""A path of a user is looked at by `hvdrun.startup.paths` alone: pathlib raises where this user may not look."""

import ast

import pytest

from tests.house.sources import read_sources

_RAISING = frozenset({"exists", "is_dir", "is_file"})
# The shim is installed into a folder of Python's own, and imports nothing of hvdrun.
_OWN = ("hvdrun/shim/",)


def find_looks(source: str) -> list[int]:
    """The lines that call pathlib's tests."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RAISING
    ]


def test_no_other_module_of_hvdrun_asks_pathlib_whether_a_path_exists() -> None:
    found = [
        f"{path}:{line}"
        for path, source in read_sources("hvdrun")
        if not str(path).startswith(_OWN)
        for line in find_looks(source)
    ]
    assert found == []


@pytest.mark.parametrize("line", ["Path(name).exists()", "folder.is_dir()", "(folder / name).is_file()"])
def test_such_a_call_is_found(line: str) -> None:
    assert find_looks(line) == [1]
    assert find_looks("is_file(path)") == []
