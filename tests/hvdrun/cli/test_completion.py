"""A shell completes the words of hvdrun: options, their values, files and folders, and the command."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdrun.cli.completion import answer_shell, join_words, list_completions
from hvdrun.cli.program import main
from hvdrun.options.programs import JOB_PROGRAMS
from hvdrun.options.table import COMPLETION_VARIABLE

PROGRAMS = ["agent", "doctor", "stacks", "timeline", "token", *JOB_PROGRAMS, "horovodrun", "torchrun"]
AGENT = ["--join", "--token-file", "--slots", "--name", "--join-timeout", "-h", "--help"]


def complete(line: str) -> list[str]:
    """What may replace the last of these words; "file" or "dir" where the shell looks for them itself."""
    *words, incomplete = line.split(" ")
    return [item.value if item.type == "plain" else item.type for item in list_completions(words[1:], incomplete)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hvdrun --min", ["--min-np", "--min-num-proc"]),
        ("hvdrun -np 2 --backend ", ["gloo", "nccl", "ucc"]),
        ("hvdrun -np 2 --backend=n", ["--backend=nccl"]),
        ("hvdrun --completion z", ["zsh"]),
        ("hvdrun --hostfile ho", ["file"]),
        ("hvdrun --wdir ", ["dir"]),
        ("hvdrun --blacklist-cooldown-range 10 ", []),
        ("hvdrun --blacklist-cooldown-range 10 20 --min-n", ["--min-np", "--min-num-proc"]),
        ("hvdrun ", ["file", *PROGRAMS]),
        ("hvdrun ag", ["file", "agent"]),
        ("hvdrun --help a", ["all"]),
        ("hvdrun --help ag", []),
        ("hvdrun -v ag", ["file"]),
        ("hvdrun agent ", ["file"]),
        ("hvdrun -np 2 python tr", ["file"]),
        ("hvdrun horovodrun -np 2 --timeline-f", ["--timeline-filename"]),
        ("hvdrun horovodrun --log-level D", ["DEBUG"]),
        ("hvdrun horovodrun --tag", []),
        ("hvdrun horovodrun --log-lev INFO --tc", ["--tcp"]),
        ("hvdrun torchrun --nproc_per_node 2 --rdzv-b", ["--rdzv-backend"]),
        ("hvdrun torchrun --start-method f", ["fork", "forkserver"]),
        ("hvdrun torchrun --log-dir ", ["dir"]),
        ("hvdrun agent -", AGENT),
        ("hvdrun agent --token-file ", ["file"]),
        ("hvdrun agent --slots 4 --j", ["--join", "--join-timeout"]),
        ("hvdrun doctor --js", ["--json"]),
        ("hvdrun ps --a", ["--all"]),
        ("hvdrun -np 2 ps --a", ["file"]),
        ("hvdrun timeline --js", ["--json"]),
        ("hvdrun doctor --hostf", ["--hostfile"]),
        ("hvdrun token --li", ["--lifetime"]),
        ("hvdrun token ", ["file"]),
    ],
)
def test_each_program_completes_its_own_options(line: str, expected: list[str]) -> None:
    assert complete(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "hvdrun -np 2 python --ba",
        "hvdrun -np 2 python train.py --backend ",
        "hvdrun -np 2 -- ",
        "hvdrun -np 2 -- python --hos",
        "hvdrun --verbose - --hos",
        "hvdrun horovodrun -np 2 python --ver",
    ],
)
def test_only_files_follow_the_users_command(line: str) -> None:
    assert complete(line) == ["file"]


def test_an_option_is_offered_again_only_if_it_repeats() -> None:
    assert complete("hvdrun --dry-run --dry") == []
    assert complete("hvdrun --mca a b --mc") == ["--mca"]
    assert complete("hvdrun horovodrun --tcp --autotune-w") == ["--autotune-warmup-samples"]


def test_a_flag_that_does_not_exist_has_no_completions() -> None:
    assert complete("hvdrun --no-such --he") == []
    assert complete("hvdrun --no-such=") == []
    assert complete("hvdrun --dry-run=") == []


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["-np", "2", ""], ["-np", "2", ""]),
        (["-H", "a", ":", "4,b", ":", "4", "--ba"], ["-H", "a:4,b:4", "--ba"]),
        (["--backend", "="], ["--backend="]),
        (["--backend", "=", "gl"], ["--backend=gl"]),
        (["-x", "A", "=", ""], ["-x", "A=", ""]),
    ],
)
def test_words_that_bash_has_separated_are_joined(pieces: list[str], words: list[str]) -> None:
    assert join_words(pieces) == words


def test_a_value_after_an_equals_sign_lacks_its_flag_in_bash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "horovodrun --log-level = D")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert answer_shell("bash_complete", ["horovodrun"]) == "plain,DEBUG"
    monkeypatch.setenv("COMP_WORDS", "horovodrun --log-level=D")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert answer_shell("zsh_complete", ["horovodrun"]) == "plain\n--log-level=DEBUG\n_"


@pytest.mark.parametrize(
    ("name", "line", "completed"),
    [
        ("hvdrun", "hvdrun -np 2 --start-t", "--start-timeout"),
        ("horovodrun", "horovodrun -np 2 --start-t", "--start-timeout"),
        ("hvdrun", "hvdrun ag", "agent"),
    ],
)
def test_bash_completes_a_line_with_the_script(name: str, line: str, completed: str, tmp_path: Path) -> None:
    path, word = tmp_path / name, "horovodrun" if name == "horovodrun" else ""
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m hvdrun {word} "$@"\n')
    path.chmod(0o755)
    script = f"""
    eval "$({name} --completion bash)"
    COMP_WORDS=({line}) COMP_CWORD={len(line.split()) - 1}
    compopt() {{ :; }}  # works only while bash completes
    _{name}_completion {name}
    echo "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    run = subprocess.run(
        ["bash", "-c", script], check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    assert (run.stdout, run.stderr) == (f"{completed}\n", "")


@pytest.mark.parametrize("program", ["hvdrun", "horovodrun"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(shell: str, program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*(["horovodrun"] if program == "horovodrun" else []), "--completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{COMPLETION_VARIABLE}={shell}_complete" in script
    assert program in script
    if shutil.which(shell) is not None:
        run = subprocess.run([shell, "-n"], check=False, input=script, capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stderr) == (0, "")


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", "tcsh"]) == 2
    assert "bash, zsh or fish" in capsys.readouterr().err
