"""Which files of this repository are written by hand, for the tests of the house rules."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("hvdrun", "rendezvous", "worker_runtime", "protos")
_FOLDERS = (*PACKAGES, "tests", "examples", "benchmarks", "deploy")


def find_python_files(*folders: str) -> list[Path]:
    """All Python files beneath these folders, or beneath all that are ours, generated ones left out; from the root."""
    found = (path for folder in folders or _FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path.relative_to(ROOT) for path in found if "_pb2" not in path.name)


def read_sources(*folders: str) -> Iterator[tuple[Path, str]]:
    """The same files with their text."""
    return ((path, (ROOT / path).read_text(encoding="utf-8")) for path in find_python_files(*folders))


def name_module(path: Path) -> str:
    """The dotted name of a module's file."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
