"""What the container files promise: pinned bases and packages, no root, hvdrun as the command.

The file for CUDA is never built. Each rule is shown a file that breaks it.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.house.sources import ROOT

FOLDER = ROOT / "deploy" / "docker"
NAMES = ("Dockerfile", "Dockerfile.cuda")
_PINNED = re.compile(r"BASE=\S+:[\w.-]+@sha256:[0-9a-f]{64}")


def read_instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction with what follows it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def find_faults(text: str) -> set[str]:
    """What a file does that it should not."""
    steps = read_instructions(text)
    stages: set[str] = set()
    faults = set()
    for name, rest in steps:
        match name, rest.split():
            case "FROM", [base, *alias]:
                if base != "${BASE}" and base not in stages:
                    faults.add("a base that is not the argument")
                stages |= set(alias[1:])
            case "ARG", [given] if given.startswith("BASE=") and not _PINNED.fullmatch(given):
                faults.add("a base without tag and digest")
            case "RUN", _ if "pip install" in rest and "-c constraints.txt" not in rest:
                faults.add("packages that are not pinned")
            case "RUN", _ if "apt-get install" in rest and "--no-install-recommends" not in rest:
                faults.add("packages that were not requested")
            case "COPY", [*sources, _] if not sources[0].startswith("--from="):
                faults |= {f"{source} is kept out of builds" for source in sources if source not in read_context()}
            case _:
                pass
    *_, last = (place for place, (name, _) in enumerate(steps) if name == "FROM")
    final = dict(steps[last:])
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", final.get("USER", "")):
        faults.add("root, or a user whom Kubernetes cannot distinguish from root")
    if final.get("ENTRYPOINT") != '["hvdrun"]':
        faults.add("another program than hvdrun, or a shell, as process 1")
    return faults


def read_context() -> set[str]:
    """What .dockerignore lets into a build."""
    return {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_keeps_the_rules(name: str) -> None:
    assert find_faults((FOLDER / name).read_text()) == set()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (r"@sha256:\w+", "", "a base without tag and digest"),
        (r"FROM \$\{BASE\} AS build", "FROM debian AS build", "a base that is not the argument"),
        (r" -c constraints\.txt", "", "packages that are not pinned"),
        (r"USER .*", "USER root", "root, or a user whom Kubernetes cannot distinguish from root"),
        (r"ENTRYPOINT .*", "ENTRYPOINT hvdrun", "another program than hvdrun, or a shell, as process 1"),
        (r"COPY protos protos", "COPY examples examples", "examples is kept out of builds"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_found(old: str, new: str, fault: str) -> None:
    text = (FOLDER / "Dockerfile").read_text()
    assert find_faults(re.sub(old, new, text)) == {fault}


def test_the_context_has_what_the_files_name() -> None:
    assert {name for name in read_context() if not (ROOT / name).exists()} == set()


def test_compose_starts_three_hosts_with_options_that_exist(tmp_path: Path) -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services = compose["services"]
    launcher, agent = services["launcher"], services["agent"]
    assert agent["scale"] == 3
    assert all(service["shm_size"] == "1gb" and service["read_only"] for service in services.values())
    command = launcher["command"]
    script = command.index("python")
    answer = ask(tmp_path, *command[:script], "--version", *command[script:])
    assert answer.startswith("hvdrun ")
    assert "Usage: hvdrun agent" in ask(tmp_path, *agent["command"], "--help")
    place, file = (agent["command"][agent["command"].index(name) + 1] for name in ("--join", "--token-file"))
    assert place == f"{launcher['hostname']}:29400"
    assert {place, file} <= set(command)
    uid, _ = dict(read_instructions((FOLDER / "Dockerfile").read_text()))["USER"].split(":")
    assert f"uid={uid}," in compose["volumes"]["token"]["driver_opts"]["o"]


def test_compose_continues_when_a_container_exits_with_0() -> None:
    """By itself --exit-code-from stops all containers when the first one ends."""
    pages = (FOLDER / "compose.yaml", FOLDER.parent / "README.md")
    commands = [re.sub(r"\\\n[# ]*", "", path.read_text()) for path in pages]
    found = [re.findall(r"docker compose .* up .*", command) for command in commands]
    assert all("--abort-on-container-failure --exit-code-from launcher" in line for lines in found for line in lines)
    assert all(found)


def ask(folder: Path, *words: str) -> str:
    """What hvdrun answers to words of which one makes it only answer, if it knows all options."""
    line = [sys.executable, "-m", "hvdrun", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=True, timeout=60).stdout
