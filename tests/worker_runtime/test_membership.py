"""The one door to the rendezvous package."""

import ast
import os
from pathlib import Path

import pytest

import worker_runtime
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient
from rendezvous.core.model import Slot, Worker
from worker_runtime import membership
from worker_runtime.membership import import_client

FOLDER = Path(worker_runtime.__file__).parent


def imported_packages(file: Path) -> set[str]:
    """The top-level names that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def test_nothing_else_of_a_worker_imports_the_rendezvous_package() -> None:
    users = {file.name for file in FOLDER.rglob("*.py") if imported_packages(file) & {"rendezvous", "protos"}}
    assert users == {"membership.py"}


def test_the_client_comes_when_it_is_asked_for() -> None:
    assert import_client() is WorkerClient


@pytest.mark.parametrize(("wanted", "seen"), [(None, "0"), ("1", "1")])
def test_grpc_starts_without_fork_handlers_unless_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, seen: str
) -> None:
    name = "GRPC_ENABLE_FORK_SUPPORT"
    monkeypatch.delenv(name, raising=False)
    if wanted is not None:
        monkeypatch.setenv(name, wanted)
    starts: list[str] = []
    monkeypatch.setattr(membership, "import_client", lambda: lambda _: starts.append(os.environ[name]))
    bootstrap = Bootstrap("job", Path("unused"), Worker(Slot("localhost", 0), 1), "127.0.0.1", 1.0, 5.0)
    membership.connect(bootstrap)
    assert starts == [seen]
    assert os.environ.get(name) == wanted
