"""Bad input: one line on stderr, the right exit code, nothing started."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from hvdrun.cli.program import main
from tests.hvdrun.interpreter import run_python

REFUSE = Mock(side_effect=AssertionError("it was launched"))
BAD_INPUT = {
    "nothing at all": ([], 2, "-np"),
    "no -np": (["true"], 2, "hvdrun -np 2 true"),
    "-np x": (["-np", "x", "true"], 2, "'x'"),
    "no command": (["-np", "2"], 2, "no command"),
    "no command after --": (["-np", "2", "--"], 2, "no command"),
    "empty command": (["-np", "2", ""], 2, "empty"),
    "too few slots": (["-np", "3", "-H", "a:2", "true"], 2, "3 workers do not fit into the 2 slots"),
    "malformed host": (["-np", "2", "-H", "a:x", "true"], 2, "'a:x'"),
    "malformed hostfile": (["-np", "2", "--hostfile", "bad-hosts", "true"], 2, "line 2"),
    "mistyped flag": (["-np", "2", "--grcae", "3", "true"], 2, "--grace"),
    "switch with a value": (["-np", "2", "--verbose=3", "true"], 2, "--verbose"),
    "malformed time": (["-np", "2", "--grace", "soon", "true"], 2, "'soon'"),
    "no time at all": (["-np", "2", "--lease", "0", "true"], 2, "longer than 0"),
    "unknown command": (["-np", "2", "no-such-program"], 127, "looked in"),
    "not executable": (["-np", "2", "./train.py"], 126, "python ./train.py"),
    "missing script": (["-np", "2", "python", "missing.py"], 2, "missing.py"),
    "unknown binding": (["-np", "1", "-bind-to", "hwthread", "true"], 2, "none, core, socket or numa"),
    "unknown backend": (["-np", "1", "--backend", "mpi", "true"], 2, "gloo, nccl or ucc"),
    "unknown mapping": (["-np", "1", "-map-by", "ppr:1:node", "true"], 2, "slot or node"),
    "no such rank": (["-np", "2", "--stdin", "2", "cat"], 2, "the ranks are 0 to 1"),
    "a variable that is not set": (["-np", "1", "-x", "NO_SUCH_VARIABLE", "true"], 2, "'NO_SUCH_VARIABLE'"),
    "no port": (["-np", "1", "-p", "ssh", "true"], 2, "65535"),
    "no such key": (["-np", "1", "-i", "no-such-key", "true"], 2, "no-such-key"),
    "a key that is a folder": (["-np", "1", "-i", "/", "true"], 2, "no regular file"),
    "no such working directory": (["-np", "1", "--wdir", "no-such-folder", "true"], 2, "no-such-folder"),
    "a relative remote Python": (["-np", "1", "--remote-python", "python3", "true"], 2, "absolute"),
    "no interface": (["-np", "1", "--network-interfaces", "eth0,", "true"], 2, "'eth0,'"),
    "another user here": (["-np", "1", "-H", "no-such-user@localhost", "true"], 2, "this machine"),
    "a line feed in the command": (["-np", "2", "a\nb"], 127, "a\\nb"),
    "an escape in a value": (["-np", "\x1b[31m", "true"], 2, "\\x1b[31m"),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A working directory with a script that is not executable and a bad hostfile."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "train.py").chmod(0o644)
    (tmp_path / "bad-hosts").write_text("a slots=1\nb slot=1\n")
    return tmp_path


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_starts_nothing(
    name: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words, code, sentence = BAD_INPUT[name]
    monkeypatch.chdir(directory)
    assert main(words, launch=REFUSE) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("hvdrun: ")
    assert sentence in line
    assert main(["--dry-run", *words], launch=REFUSE) == code


@pytest.mark.parametrize("name", ["no -np", "unknown command", "not executable"])
def test_the_program_ends_with_the_exit_code_for_bad_input(name: str, directory: Path) -> None:
    words, code, sentence = BAD_INPUT[name]
    result = run_python("-m", "hvdrun", *words, cwd=directory)
    assert (result.returncode, result.stdout) == (code, "")
    assert sentence in result.stderr
