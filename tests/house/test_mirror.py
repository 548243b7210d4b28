"""Tests mirror the packages: whoever reads a module knows where its tests are, and the other way round."""

import ast
from pathlib import Path

from tests.house.sources import ROOT, find_python_files

PACKAGES = ("hvdrun", "rendezvous", "worker_runtime")

# Modules with logic that are tested through another, and the test file that does it.
TESTED_ELSEWHERE: dict[str, str] = {}

# Test files that mirror no module, and what they test.
TESTS_OF_MORE = {
    "tests/rendezvous/core/test_transcripts.py": "membership.step, by stories",
    "tests/rendezvous/core/test_laws.py": "membership.step, by laws",
    "tests/worker_runtime/core/test_transcripts.py": "ordering.Ordering, by stories",
    "tests/worker_runtime/core/test_laws.py": "ordering.Ordering, by laws",
    "tests/hvdrun/test_bad_input.py": "the command line as a whole",
    "tests/hvdrun/test_closed_streams.py": "the command line as a whole",
    "tests/protos/test_generated.py": "all of protos, which is generated",
    "tests/rendezvous/test_fuzz.py": "the server's port, under fire",
    "tests/worker_runtime/test_failures.py": "the runtime as a whole, when something goes wrong beside it",
    "tests/worker_runtime/test_interrupts.py": "the runtime as a whole, with signals and several threads",
    "tests/worker_runtime/test_exits.py": "how the end of a worker reaches the others, through the executor",
    "tests/worker_runtime/collectives/test_worlds.py": "the worlds in which the collectives are tested",
    "tests/worker_runtime/test_bursts.py": "the collectives as a whole, a thousand at a time",
    "tests/worker_runtime/test_random_collectives.py": "the collectives as a whole, by random programs",
    "tests/worker_runtime/sequencer/test_fuzz.py": "the sequencer's port, under fire",
}


def find_test_file(module: Path) -> Path:
    """Where the tests of a module belong: hvdrun/hosts.py -> tests/hvdrun/test_hosts.py."""
    name = module.parent.name if module.name == "__init__.py" else module.name.strip("_")
    return Path("tests", module.parent, f"test_{name.removesuffix('.py').strip('_')}.py")


def has_logic(source: str) -> bool:
    """The module does something: it defines a function whose body is more than a docstring."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return any(not all(is_empty(statement) for statement in function.body) for function in functions)


def is_empty(statement: ast.stmt) -> bool:
    """A docstring, `...` or `pass`."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def test_every_module_with_logic_has_its_tests() -> None:
    modules = [path for path in find_python_files(*PACKAGES) if has_logic((ROOT / path).read_text(encoding="utf-8"))]
    missing = {
        str(module): str(find_test_file(module))
        for module in modules
        if str(module) not in TESTED_ELSEWHERE and not (ROOT / find_test_file(module)).exists()
    }
    assert missing == {}


def test_every_test_file_mirrors_a_module() -> None:
    mirrors = {find_test_file(path) for path in find_python_files(*PACKAGES)}
    tests = find_python_files(*(f"tests/{name}" for name in (*PACKAGES, "protos")))
    strays = [str(path) for path in tests if path.name.startswith("test_") and path not in mirrors]
    assert sorted(set(strays) - TESTS_OF_MORE.keys()) == []


def test_no_exception_is_out_of_date() -> None:
    assert [
        name for name in (*TESTED_ELSEWHERE, *TESTED_ELSEWHERE.values(), *TESTS_OF_MORE) if not (ROOT / name).exists()
    ] == []
    assert [name for name in TESTED_ELSEWHERE if (ROOT / find_test_file(Path(name))).exists()] == []


def test_a_module_of_declarations_needs_no_tests() -> None:
    assert not has_logic('class Transport(Protocol):\n    def open(self) -> None:\n        """Open it."""\n')
    assert has_logic("def double(x: int) -> int:\n    return 2 * x\n")


def test_a_package_is_tested_by_its_name() -> None:
    assert find_test_file(Path("hvdrun/hosts.py")) == Path("tests/hvdrun/test_hosts.py")
    assert find_test_file(Path("hvdrun/__main__.py")) == Path("tests/hvdrun/test_main.py")
    assert find_test_file(Path("hvdrun/agent/__init__.py")) == Path("tests/hvdrun/agent/test_agent.py")
