"""A shell completes the words of hvdrun: options, their values, files and folders, and the command."""

import shutil
import subprocess
import sys

import pytest

from hvdrun.cli.program import main
from hvdrun.options.table import COMPLETION_VARIABLE


def complete(words: str) -> list[str]:
    """What bash is offered for the last of these words; "file" or "dir" where it looks for them itself."""
    environment = {
        COMPLETION_VARIABLE: "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    run = subprocess.run(
        [sys.executable, "-m", "hvdrun"], check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    found = (line.split(",") for line in run.stdout.splitlines() if line)
    return [value if kind == "plain" else kind for kind, value in found]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hvdrun --min", ["--min-np", "--min-num-proc"]),
        ("hvdrun -np 2 --backend ", ["gloo", "nccl", "ucc"]),
        ("hvdrun --completion z", ["zsh"]),
        ("hvdrun --hostfile ho", ["file"]),
        ("hvdrun --wdir ", ["dir"]),
        ("hvdrun -np 2 python tr", ["file"]),
    ],
)
def test_a_shell_gets_the_words_that_may_follow(words: str, expected: list[str]) -> None:
    assert complete(words) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in script
    if shutil.which(shell) is not None:
        run = subprocess.run([shell, "-n"], check=False, input=script, capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stderr) == (0, "")


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", "tcsh"]) == 2
    assert "bash, zsh or fish" in capsys.readouterr().err
