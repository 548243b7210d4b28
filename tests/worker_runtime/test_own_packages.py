"""Our packages and the user's of the same names, in fresh interpreters."""

import subprocess
import sys
from pathlib import Path

import pytest

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
