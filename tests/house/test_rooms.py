"""Every module with logic is imported by some test of its room: that of `hvdrun/agent` is `tests/hvdrun/agent`."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.sources import ROOT, name_module, read_sources

PACKAGES = ("hvdrun", "rendezvous", "worker_runtime")

# Modules that no test of their room imports, and a test that runs them.
RUN_BY = {
    "hvdrun/__main__.py": "tests/system/test_exit.py",
    "hvdrun/agent/__main__.py": "tests/hvdrun/agent/test_main.py",
    "hvdrun/agent/entrance/sitecustomize.py": "tests/worker_runtime/startup/test_forkserver.py",
    "hvdrun/cluster/__main__.py": "tests/system/test_run.py",
    "hvdrun/startup/early.py": "tests/hvdrun/processes/test_signals.py",
    "hvdrun/shim/modules/horovod/__init__.py": "tests/hvdrun/shim/modules/horovod/test_horovod.py",
    "hvdrun/shim/modules/horovod/_modules.py": "tests/hvdrun/shim/modules/horovod/test_horovod.py",
    "hvdrun/shim/modules/horovod/common/util.py": "tests/hvdrun/shim/modules/horovod/test_horovod.py",
    "hvdrun/shim/modules/sitecustomize.py": "tests/hvdrun/agent/test_stacks.py",
    "worker_runtime/coordination/driver.py": "tests/worker_runtime/coordination/test_driver.py",
}


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


def find_imported(source: str) -> Iterator[str]:
    """The dotted names that a file imports; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{alias.name}" for alias in names)


def find_reached(room: str, imports: dict[str, set[str]], started: set[str]) -> set[str]:
    """The modules that a test starts from, and those that they import, followed through the room and what holds it."""
    reached: set[str] = set()
    rest = started
    while rest:
        reached |= rest
        followed = (name for name in rest if f"{name}.".startswith(f"{room}.") or room.startswith(f"{name}."))
        rest = set().union(*(imports[name] for name in followed)) - reached
    return reached


def find_room(module: Path) -> Path:
    """The folder that is a module's room: `worker_runtime/torch` for all that is beneath it."""
    return Path(*module.parent.parts[:2])


def test_every_module_with_logic_is_imported_by_a_test_of_its_room() -> None:
    sources = dict(read_sources(*PACKAGES))
    imports = defaultdict(set, {name_module(path): set(find_imported(source)) for path, source in sources.items()})
    tests = {path: set(find_imported(source)) for path, source in read_sources("tests")}
    missing = set()
    for room in set(map(find_room, sources)):
        started = set().union(*(names for path, names in tests.items() if path.is_relative_to("tests" / room)))
        reached = find_reached(".".join(room.parts), imports, started)
        modules = (path for path, source in sources.items() if find_room(path) == room and has_logic(source))
        missing |= {str(path) for path in modules if name_module(path) not in reached}
    assert sorted(missing) == sorted(RUN_BY)


def test_every_module_that_only_runs_has_its_test() -> None:
    assert [test for test in RUN_BY.values() if not (ROOT / test).exists()] == []


def test_a_module_of_declarations_needs_no_tests() -> None:
    assert not has_logic('class Transport(Protocol):\n    def open(self) -> None:\n        """Open it."""\n')
    assert has_logic("def double(x: int) -> int:\n    return 2 * x\n")


def test_both_forms_of_import_count() -> None:
    assert set(find_imported("import a.b\nfrom c.d import e\n")) == {"a.b", "c.d", "c.d.e"}
