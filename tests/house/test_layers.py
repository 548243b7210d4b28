"""Who may import whom: the contracts in pyproject.toml hold, and each of them can be broken."""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.house.sources import PACKAGES, ROOT

# Where each outside package is at home. A package that is not listed has no home yet: decide where it belongs.
HOMES = {
    "click": {"hvdrun.cli", "hvdrun.options"},
    "cloudpickle": {"worker_runtime.objects"},
    "cryptography": {"hvdrun.transport.ssh", "rendezvous.authority"},  # reads users' keys, and makes a job's own
    "google": {"protos", "rendezvous.wire"},
    "grpc": {"protos", "rendezvous.client", "rendezvous.relay", "rendezvous.server"},
    "mxnet": {"worker_runtime.mxnet"},
    "numpy": {"worker_runtime"},
    "paramiko": {"hvdrun.transport.ssh"},
    "psutil": {"hvdrun"},
    "rich": {"hvdrun.console"},
    "torch": {"worker_runtime"},
}

SIBLINGS = "hvdrun and worker_runtime are siblings above rendezvous, which stands on protos"
WIRE = "the wire's messages are touched only where they are encoded, served or called"
CORE = "the pure core imports nothing but itself"
WORKER_CORE = "the worker runtime's pure core imports nothing but itself"
CLICK = "click is known to the command line alone"
RICH = "rich is known to the console alone"
FRAMEWORK = "launcher and rendezvous never import a framework"
SSH = "paramiko is known to hvdrun.transport.ssh alone"
VIOLATIONS = [
    (SIBLINGS, "hvdrun/hosts.py", "import worker_runtime.errors"),
    (SIBLINGS, "worker_runtime/errors.py", "import hvdrun.errors"),
    (SIBLINGS, "rendezvous/bootstrap.py", "import hvdrun.errors"),
    (WIRE, "hvdrun/fleet.py", "import protos.rendezvous_pb2"),
    (WIRE, "rendezvous/bootstrap.py", "import protos.rendezvous_pb2"),
    (CORE, "rendezvous/core/model.py", "import os"),
    (CORE, "rendezvous/core/model.py", "import time"),
    (CORE, "rendezvous/core/model.py", "import rendezvous.errors"),
    (WORKER_CORE, "worker_runtime/core/questions.py", "import time"),
    (WORKER_CORE, "worker_runtime/core/questions.py", "import worker_runtime.wire"),
    (CLICK, "hvdrun/hosts.py", "import click"),
    (RICH, "hvdrun/cli.py", "import rich.text"),
    (SSH, "hvdrun/launch.py", "import paramiko"),
    (FRAMEWORK, "hvdrun/jobspec.py", "import torch"),
    (FRAMEWORK, "rendezvous/bootstrap.py", "import numpy"),
]


def find_broken_contracts(root: Path) -> set[str]:
    """The names of the contracts that the packages beneath this folder break."""
    program = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [program, "--no-cache"], cwd=root, env={"COLUMNS": "200"}, capture_output=True, text=True, check=False
    )
    broken = set(re.findall(r"^(\S.*) BROKEN$", run.stdout, re.MULTILINE))
    assert run.returncode == bool(broken), run.stdout + run.stderr
    assert re.search(r"^Contracts: \d+ kept, \d+ broken", run.stdout, re.MULTILINE), run.stdout + run.stderr
    return broken


@functools.cache
def build_graph() -> grimp.ImportGraph:
    """Who imports whom, outside packages included."""
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages and their contracts, to be broken."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept() -> None:
    assert find_broken_contracts(ROOT) == set()


@pytest.mark.parametrize(("contract", "file", "line"), VIOLATIONS)
def test_an_import_across_the_layers_is_caught(copy: Path, contract: str, file: str, line: str) -> None:
    path = copy / file
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{line}\n", encoding="utf-8")
    assert contract in find_broken_contracts(copy)


def test_every_contract_has_a_violation_that_proves_it() -> None:
    names = re.findall(r'^name = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert {contract for contract, _, _ in VIOLATIONS} == set(names) - {"hvdrun"}


def test_outside_packages_are_imported_only_at_home() -> None:
    graph = build_graph()
    outside = {module for module in graph.modules if "." not in module} - set(PACKAGES) - sys.stdlib_module_names
    strays = {
        f"{importer} imports {package}"
        for package in outside
        for importer in graph.find_modules_that_directly_import(package)
        if not any(f"{importer}.".startswith(f"{home}.") for home in HOMES.get(package, ()))
    }
    assert strays == set()


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("hvdrun.cli", {"torch", "mxnet", "numpy", "worker_runtime"}),
        ("hvdrun.agent.agent", {"torch", "mxnet", "numpy", "worker_runtime", "click", "rich"}),
        ("rendezvous.server", {"torch", "mxnet", "numpy", "worker_runtime", "hvdrun"}),
        ("worker_runtime", {"torch", "mxnet", "hvdrun"}),
    ],
)
def test_importing_a_room_brings_only_what_it_stands_on(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert absent.isdisjoint(run.stdout.split())


def test_importing_prints_nothing_and_starts_no_thread() -> None:
    program = (
        "import threading, hvdrun.cli, hvdrun.agent.agent, rendezvous.server, worker_runtime.torch\n"
        "print(*(thread.name for thread in threading.enumerate()))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("MainThread\n", "")
