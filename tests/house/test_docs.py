"""README and docs: short enough, no dead link, what is generated is current, and hvdrun takes each command line."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.cli.program import read_spec
from hvdrun.options.horovodrun.table import BY_WORD
from hvdrun.options.pages import TABLES
from rendezvous.core.lifecycle import PHASES, draw
from tests.house.sources import ROOT, read_sources

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
README_LINES = 150
# Options of torchrun, apptainer, py-spy, pytest, and of scripts and programs that the text names.
OTHERS_OPTIONS = {
    *("--max-restarts", "--nnodes", "--node-rank", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint"),
    *("--epochs", "--force", "--install", "--nv", "--path", "--pdb", "--pid", "--runs", "--standalone", "--trace"),
    *("--uninstall", "--write"),
}
# Of Horovod alone: the text says that they are not served.
HOROVODS_VARIABLES = {"HOROVOD_DYNAMIC_PROCESS_SETS", "HOROVOD_GPU_OPERATIONS", "HOROVOD_TIMELINE"}
# By these an agent tells its workers who they are; no user sets them.
INTERNAL_VARIABLES = {
    *("HVD_ADDRESS", "HVD_INCARNATION", "HVD_JOB", "HVD_LATE", "HVD_LEASE", "HVD_MEMBER", "HVD_SLOT", "HVD_SOCKET"),
    "HVD_START_TIMEOUT",
}
# Errors that reach a user derive from these.
BASES = {
    "HvdrunError",
    "LaunchError",
    "UsageError",
    "TransportError",
    "SshError",
    "RendezvousError",
    "HorovodInternalError",
    "InitializationError",
    "WrongArgumentError",
}
MAP = ROOT / "docs" / "contributing" / "architecture.md"
# Command lines of other programs of ours, which have tests of their own.
_OTHERS = ("horovodrun", "agent", "token")
_FILES = {
    "hosts.txt": "server1 slots=4\nserver2 slots=4\n",
    "job.yaml": "np: 2\ncommand: python train.py\n",
    "train.py": "",
}


def find_links(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        yield page.parent / target


def find_commands() -> list[str]:
    """The command lines for hvdrun itself, each once."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return sorted(set(re.findall(r"^\s*\$ hvdrun (.*)$", text, re.MULTILINE)))


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    assert [str(target) for target in find_links(page) if not target.exists()] == []


@pytest.mark.parametrize("page", [MAP, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_file_that_the_map_names_exists(page: Path) -> None:
    named = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)/?`", page.read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_messages_of_troubleshooting_are_those_of_the_error_classes() -> None:
    run = subprocess.run([sys.executable, "docs/errors.py", "--check"], cwd=ROOT, check=False, timeout=60)
    assert run.returncode == 0, "run python docs/errors.py"


def test_every_error_for_users_has_a_cause_and_a_remedy() -> None:
    unexplained = [
        f"{path}:{node.name}"
        for package in ("hvdrun", "rendezvous", "worker_runtime")
        for path, source in read_sources(package)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and node.name not in BASES
        and BASES & {base.id for base in node.bases if isinstance(base, ast.Name)}
        and not {"Cause:", "Remedy:"} <= set((ast.get_docstring(node) or "").split())
    ]
    assert unexplained == []


def read_documentation() -> str:
    """README and docs in one."""
    pages = (page for page in PAGES if page.name not in {"CHANGELOG.md", "CONTRIBUTING.md"})
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_every_option_in_the_text_exists_and_every_one_that_exists_is_in_the_text() -> None:
    own = {flag for options in TABLES.values() for option in options for flag in option.flags}
    named = set(re.findall(r"(?<![\w/-])(--[a-z][a-z0-9-]*[a-z0-9])(?![\w*-])", read_documentation()))
    assert sorted(named - own - BY_WORD.keys() - OTHERS_OPTIONS) == []
    assert sorted(flag for flag in own if flag.startswith("--") and flag not in named) == []


def test_every_variable_in_the_text_exists_and_every_one_for_users_is_in_the_text() -> None:
    pattern = r"\b((?:HVD|HVDRUN|HOROVOD)_[A-Z0-9_]*[A-Z0-9])"
    named = set(re.findall(rf"{pattern}\b", read_documentation()))
    sources = (source for package in ("hvdrun", "rendezvous", "worker_runtime") for _, source in read_sources(package))
    known = set(re.findall(rf"[\"'\$]{pattern}[\"']", "\n".join(sources)))
    assert sorted(named - known - HOROVODS_VARIABLES) == []
    assert sorted(known - named - INTERNAL_VARIABLES) == []


def test_the_map_draws_the_phases_of_the_core() -> None:
    assert draw(PHASES) in MAP.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", find_commands())
def test_hvdrun_takes_each_command_line_of_the_docs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(command, comments=True)
    if words[0] in _OTHERS:
        pytest.skip("another program")
    for name, text in _FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert read_spec(words).workers.size >= 1
