"""Who may import whom: each contract in pyproject.toml can be broken. `lint-imports` shows that they are kept."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

from tests.house.sources import PACKAGES, ROOT

# Where each outside package is at home. A package that is not listed has no home yet: decide where it belongs.
HOMES = {
    "click": {"hvdrun.cli.completion", "hvdrun.options.pages"},
    "cloudpickle": {
        "hvdrun.cluster.pickling",
        "hvdrun.testing",
        "worker_runtime.engine.pickling",
        "worker_runtime.tasks",
    },
    "cryptography": {"hvdrun.transport.ssh", "rendezvous.server.authority"},  # reads users' keys, and makes a job's own
    "google": {"protos", "rendezvous.wire"},
    "grpc": {"protos", "rendezvous.client", "rendezvous.server"},
    "mxnet": {"worker_runtime.mxnet"},
    "numpy": {"worker_runtime"},
    "paramiko": {"hvdrun.transport.ssh"},
    "psutil": {"hvdrun"},
    "pytest": {"hvdrun.testing"},  # a plugin of it, imported by it alone
    "torch": {"worker_runtime"},
    "yaml": {"hvdrun.options.languages"},
}

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
SIBLINGS = "hvdrun and worker_runtime are siblings above rendezvous, which stands on protos"
WIRE = "the wire's messages are touched only where they are encoded, served or called"
CLICK = "click is known to the command line alone"
FRAMEWORK = "launcher and rendezvous never import a framework"
PURE = "the pure rooms do no IO, read no clock, and use neither threads nor randomness"
SSH = "paramiko is known to hvdrun.transport.ssh alone"
ROOMS = "the rooms of {} stand on each other in one direction"

VIOLATIONS = [
    (SIBLINGS, "hvdrun/spec/hosts.py", "import worker_runtime.errors"),
    (SIBLINGS, "worker_runtime/errors.py", "import hvdrun.errors"),
    (SIBLINGS, "rendezvous/bootstrap.py", "import hvdrun.errors"),
    (WIRE, "hvdrun/hosts/agent_pool.py", "import protos.rendezvous_pb2"),
    (WIRE, "rendezvous/bootstrap.py", "import protos.rendezvous_pb2"),
    (CLICK, "hvdrun/spec/hosts.py", "import click"),
    (SSH, "hvdrun/job.py", "import paramiko"),
    (FRAMEWORK, "hvdrun/spec/jobspec.py", "import torch"),
    (FRAMEWORK, "rendezvous/bootstrap.py", "import numpy"),
    (PURE, "rendezvous/core/rules.py", "import time"),
    (PURE, "rendezvous/core/rules.py", "import signal"),
    (PURE, "worker_runtime/coordination/ordering/requests.py", "import random"),
    (PURE, "worker_runtime/coordination/ordering/requests.py", "import worker_runtime.errors"),
    (PURE, "worker_runtime/plans/samples.py", "import threading"),
    (ROOMS.format("hvdrun"), "hvdrun/spec/hosts.py", "import hvdrun.job"),
    (ROOMS.format("rendezvous"), "rendezvous/core/rules.py", "import rendezvous.server.server"),
    (ROOMS.format("worker_runtime"), "worker_runtime/groups/gloo.py", "import worker_runtime.engine.engine"),
]


def check_contracts(root: Path) -> str:
    """What import-linter reports of the packages beneath this folder."""
    program = Path(sys.executable).with_name("lint-imports")
    environment = {"COLUMNS": "200"}
    run = subprocess.run(
        [program, "--no-cache"], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages and their contracts, to be broken."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_import_linter_reports_each_import_across_the_layers(copy: Path) -> None:
    for _, file, line in VIOLATIONS:
        with (copy / file).open("a", encoding="utf-8") as module:
            module.write(f"\n{line}\n")
    report = check_contracts(copy)
    _, *sections = re.split(r"^(.+)\n-{3,}$", report, flags=re.MULTILINE)
    breaches = dict(zip(sections[::2], sections[1::2], strict=True))
    missed = [
        (contract, file, line)
        for contract, file, line in VIOLATIONS
        if f"{file[:-3].replace('/', '.').removesuffix('.__init__')} -> {line.removeprefix('import ')} (l."
        not in breaches.get(contract, "")
    ]
    assert missed == [], report


def test_every_contract_has_a_violation_that_proves_it() -> None:
    assert {contract for contract, _, _ in VIOLATIONS} == {contract["name"] for contract in CONTRACTS}


def test_a_new_room_needs_a_place_in_the_contract_of_its_package() -> None:
    exhaustive = [package for contract in CONTRACTS if contract.get("exhaustive") for package in contract["containers"]]
    assert sorted(exhaustive) == ["hvdrun", "rendezvous", "worker_runtime"]


def test_outside_packages_are_imported_only_at_home() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
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
        ("hvdrun", {"click", "cloudpickle", "hvdrun.cluster", "rendezvous"}),
        (
            "hvdrun.cli.program, hvdrun.job",
            {
                "torch",
                "mxnet",
                "numpy",
                "worker_runtime",
                "cloudpickle",
                "hvdrun.cluster",
                "yaml",
                "hvdrun.options.foreign",
                "click",
            },
        ),
        ("hvdrun.cluster.cluster", {"torch", "mxnet", "numpy", "worker_runtime", "grpc", "asyncio"}),
        ("hvdrun.agent.agent", {"torch", "mxnet", "numpy", "worker_runtime", "click"}),
        ("rendezvous.server.server", {"torch", "mxnet", "numpy", "worker_runtime", "hvdrun"}),
        ("rendezvous.client", {"rendezvous.wire.tasks", "rendezvous.client.tasks"}),
        ("worker_runtime", {"torch", "mxnet", "hvdrun"}),
        ("worker_runtime.torch", {"mxnet", "hvdrun", "worker_runtime.tasks", "worker_runtime.preparation"}),
        ("worker_runtime.tasks.loop", {"torch", "mxnet", "numpy", "hvdrun", "grpc"}),
    ],
)
def test_importing_a_room_imports_only_rooms_below_it(module: str, absent: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert absent.isdisjoint(run.stdout.split())


def test_importing_prints_nothing_and_starts_no_thread() -> None:
    program = (
        "import threading, hvdrun.cli.program, hvdrun.agent.agent, rendezvous.server.server, worker_runtime.torch\n"
        "print(*(thread.name for thread in threading.enumerate()))"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("MainThread\n", "")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("-m", "pure"), id="pure"),
        pytest.param(("tests/hvdrun", "tests/rendezvous", "tests/house"), id="rooms", marks=pytest.mark.nightly),
    ],
)
def test_tests_that_need_no_framework_are_collected_without_one(words: tuple[str, ...]) -> None:
    program = "import pytest, sys; sys.modules |= {'torch': None, 'mxnet': None}; sys.exit(pytest.main(sys.argv[1:]))"
    pytest_ = [sys.executable, "-c", program, "-q", "--collect-only", "-p", "no:cacheprovider"]
    run = subprocess.run([*pytest_, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
