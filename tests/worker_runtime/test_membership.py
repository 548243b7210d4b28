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


LIMIT_SECONDS = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script's folder with packages that have our names."""
    for name in ("protos", "rendezvous"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    (tmp_path / "protos" / "rendezvous_pb2.py").write_text("OWNER = 'user'\n", encoding="utf-8")
    return tmp_path


def run(folder: Path, code: str) -> None:
    """Run a script of the user's that must end well."""
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_users_packages_are_the_users_after_ours_were_imported(folder: Path) -> None:
    run(
        folder,
        "from worker_runtime import membership\n"
        "membership.import_client()\n"
        "import protos, rendezvous, protos.rendezvous_pb2\n"
        "assert protos.OWNER == rendezvous.OWNER == protos.rendezvous_pb2.OWNER == 'user'\n",
    )


def test_ours_are_imported_after_the_users_were(folder: Path) -> None:
    run(
        folder,
        "import protos, rendezvous\n"
        "from worker_runtime.membership import Bootstrap, import_client\n"
        "assert Bootstrap.read({}) is None\n"
        "assert import_client().__name__ == 'WorkerClient'\n"
        "import sys\n"
        "assert sys.modules['protos'] is protos and protos.OWNER == 'user'\n",
    )


def test_errors_are_the_same_classes_in_what_was_imported_early_and_late(folder: Path) -> None:
    run(
        folder,
        "from worker_runtime.membership import RendezvousError, import_client\n"
        "import sys\n"
        "client = sys.modules[import_client.__module__].import_client()\n"
        "refused = client.join.__globals__['JoinRefusedError']\n"
        "assert issubclass(refused, RendezvousError)\n",
    )


def test_where_nobody_has_our_names_ours_are_ordinary_modules(tmp_path: Path) -> None:
    run(
        tmp_path,
        "from worker_runtime.membership import Bootstrap\n"
        "import rendezvous.bootstrap\n"
        "assert rendezvous.bootstrap.Bootstrap is Bootstrap\n",
    )
