"""Count what a reader has to read: `python tests/house/lines.py [COMMIT]`.

A line counts that is neither blank, a comment nor a part of a docstring. One row a room: its files, its lines.
"""

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

PACKAGES = ("hvdrun", "rendezvous", "worker_runtime")
_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def count(source: str) -> int:
    """The lines of a file that hold code."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _Documented) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            documented.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - documented)


def read_sources(commit: str) -> Iterator[tuple[PurePath, str]]:
    """Every Python file of the packages, as this commit has it."""
    listed = _git("ls-tree", "-r", "--name-only", commit, *PACKAGES)
    for name in listed.splitlines():
        if name.endswith(".py"):
            yield PurePath(name), _git("show", f"{commit}:{name}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print the table."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, source in read_sources(sys.argv[1] if sys.argv[1:] else "HEAD"):
        room = "/".join(path.parts[:2]) if len(path.parts) > 2 else f"{path.parts[0]} (loose)"
        for row in (room, f"{path.parts[0]} in all"):
            files[row] += 1
            lines[row] += count(source)
    for row in sorted(lines):
        print(f"{row:36} {files[row]:4} files {lines[row]:6} lines")  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
