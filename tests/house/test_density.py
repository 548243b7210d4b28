"""What a reader need not unravel: nested conditional expressions, and parameters without an explanation."""

import ast
import builtins
import re
from collections.abc import Iterable

import pytest

from tests.house.sources import read_sources

PRODUCT = ("hvdrun", "rendezvous", "worker_runtime")
SECTION = re.compile(r"^Args:\n((?:    .*(?:\n|$))+)", re.MULTILINE)
EXPLAINED = re.compile(r"^    (?:\*\*)?([a-z_][a-z_0-9, ]*): ", re.MULTILINE)
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
            arguments = part.args
            several = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
            listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *several)
            return {each.arg for each in listed if each.arg != "self" and not each.arg.startswith("_")}
    return set()


def list_entries(node: ast.ClassDef) -> set[str]:
    """The names that a docstring explains outside of its sections."""
    return {name for match in ENTRY.finditer(ast.get_docstring(node) or "") for name in match[1].split(", ")}


def find_unexplained(source: str, exceptions: frozenset[str] = frozenset()) -> list[str]:
    """The parameters of constructors that `Args:` of their class does not explain, as `Class.parameter`.

    Args:
        source: a module.
        exceptions: the classes that are exceptions. Their parameters are parts of a sentence, which explains them; such
            a class has `Args:` with all parameters, or none.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            explained = list_explained(node)
            if explained or node.name not in exceptions:
                found += [f"{node.name}.{name}" for name in sorted(list_parameters(node) - explained)]
    return found


def list_explained(node: ast.ClassDef) -> set[str]:
    """The names below `Args:` in a docstring."""
    section = SECTION.search(ast.get_docstring(node) or "")
    if section is None:
        return set()
    return {name for match in EXPLAINED.finditer(section[1]) for name in match[1].split(", ")}


def find_exceptions(sources: Iterable[str]) -> frozenset[str]:
    """The names of the classes that are exceptions, by themselves or by a base of theirs."""
    classes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    names = {"BaseException", "Exception", "SystemExit"}
    names |= {name for name, value in vars(builtins).items() if isinstance(value, type) and value.__base__ is Exception}
    before = 0
    while len(names) > before:
        before = len(names)
        names |= {
            node.name for node in classes if names.intersection(ast.unparse(base).split(".")[-1] for base in node.bases)
        }
    return frozenset(names)


def test_conditional_expressions_are_not_nested() -> None:
    nested = {str(path): find_nested(source) for path, source in read_sources(*PRODUCT)}
    assert {path: lines for path, lines in nested.items() if lines} == {}


def test_parameters_of_a_constructor_stand_apart_from_attributes() -> None:
    mixed = {str(path): find_mixed(source) for path, source in read_sources(*PRODUCT)}
    assert {path: names for path, names in mixed.items() if names} == {}


def test_each_parameter_of_a_constructor_is_explained() -> None:
    sources = {str(path): source for path, source in read_sources(*PRODUCT)}
    exceptions = find_exceptions(sources.values())
    unexplained = {path: find_unexplained(source, exceptions) for path, source in sources.items()}
    assert {path: names for path, names in unexplained.items() if names} == {}


def test_a_nested_conditional_expression_is_caught() -> None:
    assert find_nested("x = 1 if a else 2\ny = 1 if a else 2 if b else 3\n") == [2]


def test_a_parameter_among_attributes_is_caught() -> None:
    body = "    def __init__(self, spec):\n        self.size = 0\n"
    assert find_mixed(f'class Job:\n    """A job.\n\n    spec: its value.\n    """\n\n{body}') == ["Job"]


def test_a_parameter_under_its_heading_is_accepted() -> None:
    docstring = '"""A job.\n\n    Args:\n        spec: its value.\n\n    size: of the job.\n    """'
    body = "    def __init__(self, spec):\n        self.size = 0\n"
    assert find_mixed(f"class Job:\n    {docstring}\n\n{body}") == []


@pytest.mark.parametrize(
    "docstring",
    [
        '"""A job."""',
        '"""A job of this spec, with an environment."""',
        '"""A job.\n\n    Args:\n        spec: its value.\n    """',
        '"""A job.\n\n    Args:\n        spec: its value.\n\n    env: its variables.\n    """',
    ],
)
def test_a_parameter_without_an_explanation_is_caught(docstring: str) -> None:
    body = "    def __init__(self, spec, **env):\n        self.size = 0\n"
    assert "Job.env" in find_unexplained(f"class Job:\n    {docstring}\n\n{body}")


def test_all_parameters_below_their_heading_are_accepted() -> None:
    docstring = '"""A job.\n\n    Args:\n        spec, size: its\n            values.\n        env: variables.\n    """'
    body = "    def __init__(self, spec, *, size, **env):\n        self.size = 0\n"
    assert find_unexplained(f"class Job:\n    {docstring}\n\n{body}") == []


def test_an_exception_with_some_of_its_parameters_is_caught() -> None:
    body = "    def __init__(self, host, reason):\n        super().__init__(host)\n"
    bare = f'class LostError(UsageError):\n    """It is lost."""\n\n{body}'
    half = bare.replace("lost.", "lost.\n\n    Args:\n        host: a name.\n    ")
    exceptions = find_exceptions(
        [bare, "class UsageError(hvdrun.HvdrunError): ...\nclass HvdrunError(ValueError): ..."]
    )
    assert find_unexplained(bare, exceptions) == []
    assert find_unexplained(half, exceptions) == ["LostError.reason"]
