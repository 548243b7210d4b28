"""No test asserts a duration: a busy machine is no fault of the product."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.sources import read_sources

CLOCKS = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "ru_utime"})
CLOCKS_OF_MODULES = frozenset({"time.time", "os.times"})
PASS_ON = frozenset({"max", "min", "float", "sum", "abs", "int", "round", "math.ceil", "math.floor"})
# A comparison with this name ends what hangs.
LIMIT = "deadline"


def reads_clock(node: ast.AST, names: set[str]) -> bool:
    """The value of an expression is a clock's, one of these names', or computed from such; arguments do not count."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=name):
            return name in CLOCKS or ast.unparse(node) in CLOCKS_OF_MODULES
        case ast.Call(func=function, args=arguments):
            is_kept = isinstance(function, ast.Name | ast.Attribute) and ast.unparse(function) in PASS_ON
            return reads_clock(function, names) or (is_kept and any(reads_clock(each, names) for each in arguments))
    return any(reads_clock(each, names) for each in ast.iter_child_nodes(node))


def find_names(function: ast.AST, known: set[str]) -> set[str]:
    """The names that are assigned from a clock in a function, and those known before."""
    names = set(known)
    assignments = [node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.NamedExpr | ast.AugAssign)]
    while True:
        found = {
            part.id
            for node in assignments
            if reads_clock(node.value, names)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for part in ast.walk(target)
            if isinstance(part, ast.Name)
        }
        if found <= names:
            return names
        names |= found


def find_clocks(module: ast.Module) -> set[str]:
    """The names that a module imports from a clock, and its functions that return what a clock says."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    clocks = {
        alias.asname or alias.name
        for node in imports
        for alias in node.names
        if alias.name in CLOCKS or f"{node.module}.{alias.name}" in CLOCKS_OF_MODULES
    }
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        names = find_names(function, clocks)
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        if any(reads_clock(value, names) for value in returned):
            clocks.add(function.name)
    return clocks


def find_timed(source: str) -> Iterator[str]:
    """The assertions that depend on a clock: "12: seconds < 0.5"."""
    module = ast.parse(source)
    clocks = find_clocks(module)
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            names = find_names(function, clocks)
            for node in ast.walk(function):
                if isinstance(node, ast.Assert) and reads_clock(node.test, names):
                    text = ast.unparse(node.test)
                    if not text.endswith(f" < {LIMIT}"):
                        yield f"{node.lineno}: {text}"


def test_no_test_asserts_a_duration() -> None:
    timed = {str(path): sorted(set(find_timed(source))) for path, source in read_sources("tests")}
    assert {path: found for path, found in timed.items() if found} == {}


@pytest.mark.parametrize(
    ("count", "body"),
    [
        (1, "    began = time.monotonic()\n    work()\n    assert time.monotonic() - began < 1\n"),
        (1, "    began = time.perf_counter()\n    seconds = time.perf_counter() - began\n    assert seconds < 1\n"),
        (1, "    assert time.process_time() == 0\n"),
        (1, "    from time import time as now\n    assert now() < 1\n"),
        (1, "    def last():\n        return time.time() - began\n    assert last() < 1\n"),
        (0, "    deadline = time.monotonic() + 30\n    assert time.monotonic() < deadline\n"),  # ends what hangs
    ],
)
def test_an_assertion_about_a_duration_is_reported(count: int, body: str) -> None:
    assert len(list(find_timed(f"def test_f():\n{body}"))) == count
