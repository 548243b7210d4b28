"""What a reader need not unravel: nested conditional expressions, and parameters among attributes."""

import ast
import re

from tests.house.sources import read_sources

PRODUCT = ("hvdrun", "rendezvous", "worker_runtime")
ENTRY = re.compile(r"^([a-z_][a-z_0-9, ]*): ", re.MULTILINE)  # one that is not indented, as attributes are listed


def find_nested(source: str) -> list[int]:
    """The lines of conditional expressions that contain another one."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.IfExp) and sum(isinstance(part, ast.IfExp) for part in ast.walk(node)) > 1
    ]


def find_mixed(source: str) -> list[str]:
    """The classes whose docstring lists a parameter of the constructor without the heading `Args:`."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and not list_parameters(node).isdisjoint(list_entries(node))
    ]


def list_parameters(node: ast.ClassDef) -> set[str]:
    """The parameters of the constructor that a class defines itself."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return {each.arg for each in (*part.args.posonlyargs, *part.args.args, *part.args.kwonlyargs)}
    return set()


def list_entries(node: ast.ClassDef) -> set[str]:
    """The names that a docstring explains outside of its sections."""
    return {name for match in ENTRY.finditer(ast.get_docstring(node) or "") for name in match[1].split(", ")}


def test_conditional_expressions_are_not_nested() -> None:
    nested = {str(path): find_nested(source) for path, source in read_sources(*PRODUCT)}
    assert {path: lines for path, lines in nested.items() if lines} == {}


def test_parameters_of_a_constructor_stand_apart_from_attributes() -> None:
    mixed = {str(path): find_mixed(source) for path, source in read_sources(*PRODUCT)}
    assert {path: names for path, names in mixed.items() if names} == {}


def test_a_nested_conditional_expression_is_caught() -> None:
    assert find_nested("x = 1 if a else 2\ny = 1 if a else 2 if b else 3\n") == [2]


def test_a_parameter_among_attributes_is_caught() -> None:
    body = "    def __init__(self, spec):\n        self.size = 0\n"
    assert find_mixed(f'class Job:\n    """A job.\n\n    spec: its value.\n    """\n\n{body}') == ["Job"]


def test_a_parameter_under_its_heading_is_accepted() -> None:
    docstring = '"""A job.\n\n    Args:\n        spec: its value.\n\n    size: of the job.\n    """'
    body = "    def __init__(self, spec):\n        self.size = 0\n"
    assert find_mixed(f"class Job:\n    {docstring}\n\n{body}") == []
