"""README and docs as tests read them: pages, blocks of code, command lines."""

import re
import shlex
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DEPLOY = ROOT / "deploy" / "README.md"
TUTORIAL = ROOT / "docs" / "tutorials" / "pytorch.md"
PAGES = (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
# Lines for a shell that no test runs as they are, by their program, and why.
NOT_RUN = {
    "HVD_BACKEND=gloo": "torchrun's command; tests of torchrun's workers run others like it",
    "JOB=~/project": "needs Docker",
    "bsub": "needs LSF",
    "docker": "needs Docker",
    "horovodrun": "has tests of its own",
    "hvdrun agent": "has tests of its own",
    "hvdrun horovodrun": "has tests of its own",
    "hvdrun token": "has tests of its own",
    "hvdrun torchrun": "has tests of its own",
    "kubectl": "needs Kubernetes",
    "make": "installs torch and runs these tests",
    "pip": "installs torch; a nightly test installs the wheel with it",
    "python": "changes the Python environment; the shim has tests of its own",
    "qsub": "needs PBS",
    "salloc": "needs Slurm",
    "sbatch": "needs Slurm",
}
_JOB = r"(?:timeout \S+ \S+ )?hvdrun "
# These options take hosts from elsewhere: other machines, a scheduler, agents, a file.
_OTHER_HOSTS = {"-H", "--hostfile", "--host-discovery-script", "--wait-for-agents"}


def read(pages: Iterable[Path] = PAGES) -> str:
    """The text of all pages."""
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def find_blocks(text: str, language: str) -> list[str]:
    """Blocks of code in a language, those in tabs too."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for _, block in found]


def find_shell_lines(pages: Iterable[Path] = (*PAGES, DEPLOY)) -> list[str]:
    """What users type, each once."""
    return sorted(set(re.findall(r"^\s*\$ (.*)$", read(pages), re.MULTILINE)))


def find_reason(line: str) -> str | None:
    """Why no test runs a line for a shell; None if it is a job of hvdrun."""
    words = line.split()
    return NOT_RUN.get(" ".join(words[:2])) or NOT_RUN.get(words[0])


def find_commands(pages: Iterable[Path] = (*PAGES, DEPLOY)) -> list[str]:
    """What follows `hvdrun` in each command line of a job, in a block or within a sentence, each once."""
    sentences = re.findall(r"`(hvdrun [^`]*(?: hostname| python \S+\.py| python -m [\w.]+))`", read(pages))
    lines = {line for line in find_shell_lines(pages) if find_reason(line) is None} | set(sentences)
    return sorted({shlex.join(shlex.split(re.sub(f"^{_JOB}", "", line), comments=True)) for line in lines})


def is_for_one_host(command: str) -> bool:
    """Whether a command's workers all run on this machine."""
    return "-np" in command and not _OTHER_HOSTS & set(command.replace("-H localhost", "").split())
