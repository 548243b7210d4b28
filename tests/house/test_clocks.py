"""No test asserts a duration: a busy machine is no fault of the product."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.sources import read_sources

CLOCKS = frozenset({"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "ru_utime"})
CLOCKS_OF_MODULES = frozenset({"time.time", "os.times"})
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
            is_kept = isinstance(function, ast.Name) and function.id in {"max", "min", "float", "sum", "abs"}
            return reads_clock(function, names) or (is_kept and any(reads_clock(each, names) for each in arguments))
    return any(reads_clock(each, names) for each in ast.iter_child_nodes(node))


def find_names(function: ast.AST) -> set[str]:
    """The names that are assigned from a clock in a function."""
    names: set[str] = set()
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


def find_timed(source: str) -> Iterator[str]:
    """The assertions that depend on a clock: "12: seconds < 0.5"."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            names = find_names(function)
            for node in ast.walk(function):
                if isinstance(node, ast.Assert) and reads_clock(node.test, names):
                    text = ast.unparse(node.test)
                    if not text.endswith(f" < {LIMIT}"):
                        yield f"{node.lineno}: {text}"


def test_no_test_asserts_a_duration() -> None:
    timed = {str(path): sorted(set(find_timed(source))) for path, source in read_sources("tests")}
    assert {path: found for path, found in timed.items() if found} == {}


@pytest.mark.parametrize(
    "body",
    [
        "    began = time.monotonic()\n    work()\n    assert time.monotonic() - began < 1\n",
        "    began = time.perf_counter()\n    seconds = time.perf_counter() - began\n    assert seconds < 1\n",
        "    assert time.process_time() == 0\n",
    ],
)
def test_an_assertion_about_a_duration_is_reported(body: str) -> None:
    assert len(list(find_timed(f"def test_f():\n{body}"))) == 1


def test_a_limit_that_ends_what_hangs_is_allowed() -> None:
    assert (
        list(find_timed("def f():\n    deadline = time.monotonic() + 30\n    assert time.monotonic() < deadline\n"))
        == []
    )
