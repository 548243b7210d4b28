"""The house from above: how many floors its packages have, how many modules stand loose, and that nothing goes round.

Every import counts, also under TYPE_CHECKING and inside functions. A folder directly beneath a package is one room. A
floor is one more than the highest floor that a room imports from.
"""

import ast
from collections.abc import Iterator, Mapping

import pytest

from tests.house.sources import name_module, read_sources

# Per package: the most loose modules, and the most floors.
LIMITS = {"hvdrun": (6, 9), "rendezvous": (2, 5), "worker_runtime": (4, 9)}
Graph = dict[str, set[str]]


def read_graph(package: str) -> Graph:
    """What each module of a package imports of it."""
    sources = {name_module(path): ast.parse(text) for path, text in read_sources(package)}
    return {name: set(find_imports(name, tree, sources)) for name, tree in sources.items()}


def find_imports(name: str, tree: ast.Module, known: Mapping[str, object]) -> Iterator[str]:
    """The modules among the known ones that one imports; `from a import b` is `a.b` where that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [each if each in known else node.module for each in found]
        else:
            continue
        yield from (each for each in found if each in known and each != name)


def join_rooms(graph: Graph) -> Graph:
    """The same graph with each folder directly beneath the package as one."""
    rooms: Graph = {}
    for name, imported in graph.items():
        room = find_room(name)
        rooms.setdefault(room, set()).update(found for each in imported if (found := find_room(each)) != room)
    return rooms


def find_room(name: str) -> str:
    """The folder that a module is in; itself, where it is loose."""
    return ".".join(name.split(".")[:2])


def find_circle(graph: Graph) -> list[str]:
    """The modules on a circle, or between two circles."""
    left = dict(graph)
    while True:
        imported = set().union(*left.values())
        ends = [name for name, imports in left.items() if name not in imported or not imports & left.keys()]
        if not ends:
            return sorted(left)
        for name in ends:
            del left[name]


def count_floors(graph: Graph) -> int:
    """Of a graph without circles."""
    floors: dict[str, int] = {}

    def find_floor(name: str) -> int:
        if name not in floors:
            floors[name] = 1 + max((find_floor(each) for each in graph[name]), default=0)
        return floors[name]

    return max(map(find_floor, graph))


@pytest.mark.parametrize("package", LIMITS)
def test_no_files_and_no_rooms_import_each_other_in_a_circle(package: str) -> None:
    graph = read_graph(package)
    assert find_circle(graph) == []
    assert find_circle(join_rooms(graph)) == []


@pytest.mark.parametrize("package", LIMITS)
def test_loose_modules_and_floors_are_few(package: str) -> None:
    loose, floors = LIMITS[package]
    rooms = join_rooms(read_graph(package))
    folders = {find_room(name_module(path)) for path, _ in read_sources(package) if len(path.parts) > 2}
    assert len(rooms.keys() - folders - {package}) <= loose
    assert count_floors(rooms) <= floors


def test_a_circle_is_found_and_floors_are_counted() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["b", "c"]
    assert count_floors({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == 3


def test_the_core_has_few_files_and_floors_and_no_circle() -> None:
    core = {name: imports for name, imports in read_graph("rendezvous").items() if name.startswith("rendezvous.core.")}
    graph = {name: imports & core.keys() for name, imports in core.items()}
    assert find_circle(graph) == []
    assert len(graph) <= 17
    assert count_floors(graph) <= 7
