"""A file fits on a few screens and a function on one; a longer one says why, in a sentence `Long because ...`.

The sentence is in the docstring; or in a comment, where the docstring is public documentation.
"""

import ast

from tests.house.sources import read_sources

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
REASON = "Long because "
COMMENT = f"# {REASON}"


def find_unexplained(source: str) -> list[str]:
    """What is too long in a module without saying why: `file`, or a function's name."""
    tree = ast.parse(source)
    found = []
    if len(source.splitlines()) > MAX_FILE_LINES and not gives_reason(tree):
        found.append("file")
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            inside = source.splitlines()[node.lineno - 1 : node.end_lineno]
            if lines > MAX_FUNCTION_LINES and not (gives_reason(node) or any(COMMENT in line for line in inside)):
                found.append(node.name)
    return found


def gives_reason(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """The docstring says why this is long."""
    return REASON in " ".join((ast.get_docstring(node) or "").split())


def test_what_is_long_says_why() -> None:
    unexplained = {str(path): find_unexplained(source) for path, source in read_sources()}
    assert {path: names for path, names in unexplained.items() if names} == {}


def test_a_long_file_and_a_long_function_are_caught() -> None:
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    assert find_unexplained(f"def walk():\n{body}") == ["walk"]
    assert find_unexplained("x = 1\n" * (MAX_FILE_LINES + 1)) == ["file"]


def test_the_limits_themselves_are_allowed() -> None:
    body = "    x = 1\n" * (MAX_FUNCTION_LINES - 1)
    rest = "x = 1\n" * (MAX_FILE_LINES - MAX_FUNCTION_LINES)
    assert find_unexplained(f"def walk():\n{body}{rest}") == []


def test_a_reason_in_the_docstring_is_accepted() -> None:
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    reason = '"""Walk.\n\n    Long because\n    the road is.\n    """\n'
    assert find_unexplained(f"def walk():\n    {reason}{body}") == []


def test_a_reason_in_a_comment_is_accepted() -> None:
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    assert find_unexplained(f"def walk():\n    # Long because the road is.\n{body}") == []
