"""The one door to the rendezvous package, also where the user has packages of our names."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import worker_runtime
from rendezvous.bootstrap import Bootstrap
from rendezvous.client import WorkerClient
from rendezvous.core.model import Slot, Worker
from tests.waiting import LIMIT_SECONDS
from worker_runtime import rendezvous
from worker_runtime.rendezvous import import_client

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


def test_other_packages_of_a_worker_do_not_import_the_rendezvous_package() -> None:
    users = {file for file in FOLDER.rglob("*.py") if imported_packages(file) & {"rendezvous", "protos"}}
    assert users == {FOLDER / "rendezvous" / "__init__.py"}


def test_the_client_is_imported_on_request() -> None:
    assert import_client() is WorkerClient


@pytest.mark.parametrize(("wanted", "seen"), [(None, "0"), ("1", "1")])
def test_grpc_starts_without_fork_handlers_unless_they_are_requested(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, seen: str
) -> None:
    name = "GRPC_ENABLE_FORK_SUPPORT"
    monkeypatch.delenv(name, raising=False)
    if wanted is not None:
        monkeypatch.setenv(name, wanted)
    starts: list[str] = []
    monkeypatch.setattr(rendezvous, "import_client", lambda: lambda _: starts.append(os.environ[name]))
    bootstrap = Bootstrap("job", Path("unused"), Worker(Slot("localhost", 0), 1), "127.0.0.1", 1.0, 5.0)
    rendezvous.connect(bootstrap)
    assert starts == [seen]
    assert os.environ.get(name) == wanted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script's folder with packages that have our names."""
    for name in ("protos", "rendezvous"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    (tmp_path / "protos" / "rendezvous_pb2.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    return tmp_path


USES = {
    "the user's after ours": """
from worker_runtime import rendezvous
rendezvous.import_client()
import protos, rendezvous, protos.rendezvous_pb2
assert protos.OWNER == rendezvous.OWNER == protos.rendezvous_pb2.OWNER == 'user'
""",
    "ours after the user's": """
import protos, rendezvous
from worker_runtime.rendezvous import Bootstrap, import_client
assert Bootstrap.read({}) is None
assert import_client().__name__ == 'WorkerClient'
import sys
assert sys.modules['protos'] is protos and protos.OWNER == 'user'
""",
    "errors are the same classes in what was imported early and late": """
from worker_runtime.rendezvous import RendezvousError, import_client
import sys
client = sys.modules[import_client.__module__].import_client()
refused = client.join.__globals__['JoinRefusedError']
assert issubclass(refused, RendezvousError)
""",
    "the user's are gone": """
import shutil, sys
for name in ("protos", "rendezvous"):
    shutil.rmtree(f"{sys.path[0]}/{name}")
from worker_runtime.rendezvous import Bootstrap
import rendezvous.bootstrap
assert rendezvous.bootstrap.Bootstrap is Bootstrap
""",
}


@pytest.mark.parametrize("code", USES.values(), ids=list(USES))
def test_packages_of_the_user_and_ours_of_the_same_names_keep_apart(folder: Path, code: str) -> None:
    """Where the user has none of our names, ours are ordinary modules."""
    (folder / "script.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, folder / "script.py"], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
