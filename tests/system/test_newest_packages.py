"""hvdrun with the newest versions that pyproject.toml allows of all packages of the base install.

constraints.txt pins the versions of every other test. So a release that breaks hvdrun is seen here first.
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.house.sources import ROOT
from tests.lab.requirements import do_without

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

# What touches these packages most: pickles, the wire, certificates, SSH.
TESTS = (
    "tests/hvdrun/cluster",
    "tests/hvdrun/transport/ssh",
    "tests/rendezvous/server",
    "tests/rendezvous/wire",
    "tests/worker_runtime/tasks",
)


@pytest.fixture(scope="module")
def newest() -> Iterator[Path]:
    """A folder with the newest packages, to be searched before the others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with TemporaryDirectory(prefix="hvd-newest-") as folder:
        pip = (sys.executable, "-m", "pip", "install", "--only-binary", ":all:", "--target", folder)
        done = subprocess.run([*pip, *project["dependencies"]], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            do_without(f"the newest packages cannot be had here: {done.stderr.strip().splitlines()[-1]}")
        yield Path(folder)


def test_the_tests_pass_with_the_newest_packages(newest: Path) -> None:
    path = os.pathsep.join(filter(None, [str(newest), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not nightly", *TESTS]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    versions = sorted(f"{each.name} {each.version}" for each in distributions(path=[str(newest)]))
    assert done.returncode == 0, f"with {', '.join(versions)}:\n{done.stdout[-10_000:]}"
