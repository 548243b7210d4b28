"""A file fits on a few screens, and a function on one. A longer file needs a decision in the review of its change."""

import ast

from tests.house.sources import read_sources

MAX_FILE_LINES = 400
MAX_BODY_LINES = 60  # its docstring, which may explain many arguments, does not count

# The files that are longer, each by such a decision.
LONG_FILES = {
    "hvdrun/agent/agent.py",
    "hvdrun/options/table.py",
    "rendezvous/core/facts.py",
    "rendezvous/core/losses.py",
    "hvdrun/job.py",
    "tests/hvdrun/hosts/test_hosts.py",
    "tests/rendezvous/server/test_server.py",
    "tests/worker_runtime/elastic/test_elastic.py",
    "tests/worker_runtime/engine/test_recovery.py",
    "tests/worker_runtime/membership/test_recovery.py",
    "tests/worker_runtime/mxnet/elastic/test_state.py",
    "tests/worker_runtime/mxnet/test_trainer.py",
    "worker_runtime/coordination/wire.py",
    "worker_runtime/engine/engine.py",
    "worker_runtime/errors.py",
    "worker_runtime/reduction/reducer.py",
    "worker_runtime/torch/ops.py",
}


def find_long_functions(source: str) -> list[str]:
    """The names of the functions of a module whose bodies are too long."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return [function.name for function in functions if count_body_lines(function) > MAX_BODY_LINES]


def count_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function after its docstring."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def test_a_longer_file_is_one_that_a_review_has_accepted() -> None:
    long = {str(path) for path, source in read_sources() if len(source.splitlines()) > MAX_FILE_LINES}
    assert long - LONG_FILES == set(), "divide it, or add it to the list with the review's consent"


def test_a_function_fits_on_a_screen() -> None:
    found = {str(path): find_long_functions(source) for path, source in read_sources()}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_long_body_is_found_and_a_long_docstring_is_not() -> None:
    def write(docstring_lines: int, body_lines: int) -> str:
        docstring = "\n".join(["    word"] * docstring_lines)
        return f'def walk():\n    """Walk.\n{docstring}\n    """\n' + "    x = 1\n" * body_lines

    assert find_long_functions(write(100, MAX_BODY_LINES)) == []
    assert find_long_functions(write(0, MAX_BODY_LINES + 1)) == ["walk"]
