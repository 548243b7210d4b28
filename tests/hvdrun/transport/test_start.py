"""The line that starts an agent, in real shells, and what is made of its failures."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from hvdrun import __version__
from hvdrun.transport import start
from hvdrun.transport.start import SENTINEL, RemoteAgent, last_words
from hvdrun.transport.transport_errors import (
    AgentStartError,
    DirectoryMissingError,
    HvdrunMissingError,
    PythonMissingError,
    PythonTooOldError,
    RemotePrefixError,
    TransportError,
)
from tests.waiting import LIMIT_SECONDS

SHELLS = ("sh", "bash", "dash", "csh", "tcsh", "fish", "zsh")


def run(
    agent: RemoteAgent, shell: str = "sh", orders: bytes = b"", **environment: str
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [shell, "-c", agent.command()],
        input=agent.script() + orders,
        env={"PATH": "/usr/bin:/bin", "HOME": "/no/home", **environment},
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A program in Python's place, with a difficult name: shows its arguments, its variable and its input."""
    path = tmp_path / "it's a $python!"
    path.write_text('#!/bin/sh\necho "$@" "$COLOUR"\nexec cat\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_login_shell_starts_the_agent_with_its_orders(python: str, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here: apt-get install {shell}")
    done = run(RemoteAgent(python, "echo 'it''s' \"$HOME\" !\nexport COLOUR=blue"), shell, b"orders\nmore")
    before, mark, after = done.stdout.partition(SENTINEL)
    assert before == b"its /no/home !\n"
    assert mark
    assert after == b"-P -m hvdrun.agent blue\norders\nmore"
    assert done.stderr.endswith(SENTINEL)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_without_input_ends_by_itself(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    """As on a host that was cut off before its first order."""
    if shutil.which(shell) is None or shutil.which("bash") is None:
        pytest.skip(f"no {shell} here: apt-get install {shell}")
    monkeypatch.setattr(start, "_LEAST_SECONDS", 1)
    command = RemoteAgent("python3", launcher_timeout_seconds=0.5).command()
    with subprocess.Popen([shell, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.wait(LIMIT_SECONDS) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b""


@pytest.mark.parametrize("patience", [None, 0.5, 30.0])
def test_the_launcher_timeout_changes_no_other_part_of_the_command(python: str, patience: float | None) -> None:
    assert run(RemoteAgent(python, launcher_timeout_seconds=patience), orders=b"x").stdout.endswith(b"hvdrun.agent \nx")


def test_without_bash_the_prefix_runs_in_sh(python: str, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat"):
        (tools / name).symlink_to(shutil.which("dash" if name == "sh" and shutil.which("dash") else name) or name)
    done = run(RemoteAgent(python, "COLOUR=${BASH_VERSION:-none}; export COLOUR"), PATH=str(tools))
    assert done.stdout == SENTINEL + b"-P -m hvdrun.agent none\n"
    assert b"bash" not in done.stderr


def test_with_bash_a_prefix_may_use_its_words(python: str, tmp_path: Path) -> None:
    (tmp_path / "env.sh").write_text("words=(a blue)\nexport COLOUR=${words[1]}\n", encoding="utf-8")
    done = run(RemoteAgent(python, f"source '{tmp_path}/env.sh'"))
    assert done.stdout == SENTINEL + b"-P -m hvdrun.agent blue\n"


def test_a_tilde_means_the_home_directory_on_the_remote_host(tmp_path: Path, python: str) -> None:
    done = run(RemoteAgent(f"~/{Path(python).name}"), HOME=str(tmp_path))
    assert done.stdout.startswith(SENTINEL + b"-P")


@pytest.mark.parametrize("name", ["data", "it's\na $HOME"])
def test_the_directory_is_looked_for_behind_the_prefix(tmp_path: Path, python: str, name: str) -> None:
    missing = str(tmp_path / name)
    done = run(RemoteAgent(python, directory=missing))
    assert (done.returncode, done.stdout) == (122, b"")
    assert run(RemoteAgent(python, f"mkdir {shlex.quote(missing)}", missing)).stdout.startswith(SENTINEL)


def test_bytes_that_are_no_text_pass(tmp_path: Path) -> None:
    path = tmp_path / b"caf\xe9".decode(errors="surrogateescape")
    path.write_text("#!/bin/sh\necho up\n", encoding="utf-8")
    path.chmod(0o755)
    assert run(RemoteAgent(str(path), b"# \xe9".decode(errors="surrogateescape"))).stdout == SENTINEL + b"up\n"


@pytest.mark.parametrize(
    "prefix", ["trap 'echo 3 bye >&2' EXIT; false", "trap 'exit 3' EXIT; false", "(sleep 0.2; echo 3 >&2) & false"]
)
def test_a_process_that_a_prefix_leaves_behind_does_not_hide_its_failure(python: str, prefix: str) -> None:
    agent = RemoteAgent(python, f"echo why >&2; {prefix}")
    done = run(agent)
    failure = agent.explain("a", done.returncode, done.stderr, done.stdout, "ssh")
    assert isinstance(failure, RemotePrefixError)
    assert (failure.code, failure.said) == (1, "why")


@pytest.mark.parametrize(
    ("exit_code", "errors", "error", "words"),
    [
        (127, SENTINEL + b"sh: 1: exec: /py: not found\n", PythonMissingError, "no such file"),
        (126, SENTINEL + b"sh: 1: exec: /py: Permission denied\n", PythonMissingError, "cannot be executed"),
        (
            1,
            SENTINEL + b"/py: Error while finding module ... No module named 'hvdrun'\n",
            HvdrunMissingError,
            __version__,
        ),
        (1, SENTINEL + b"/py: No module named hvdrun.agent\n", HvdrunMissingError, "pip install"),
        (2, SENTINEL + b"Unknown option: -P\nusage: ...\n", PythonTooOldError, "3.11"),
        (
            1,
            SENTINEL + b"Traceback (most recent call last):\n ...\nModuleNotFoundError: No module named 'google'\n",
            AgentStartError,
            r"No module named 'google'\. Run /py -m hvdrun --version there to see why\.$",
        ),
        (1, SENTINEL + b"this host has no network.\n", AgentStartError, r"exit code 1\): this host has no network\.$"),
        (
            1,
            b"loading\n" + SENTINEL,
            AgentStartError,
            r"exit code 1\): loading\. Run /py -m hvdrun --version there to see why\.$",
        ),
        (1, b"This account is not available.\n", AgentStartError, "not available"),
        (127, b"exec: sh: not found\n", AgentStartError, "sh: not found"),
        (-1, b"", AgentStartError, r"without an exit code\)\. Check that you can run a command there with srun\.$"),
        (121, b"why\n" + start._PREFIX_SENTINEL + b"7\n", RemotePrefixError, r"exit code 7 \(why\)"),
        (122, b"loading\n", DirectoryMissingError, "'/data' does not exist on the host 'a'"),
        (122, SENTINEL + b"the agent's own\n", AgentStartError, "exit code 122"),
    ],
)
def test_each_failure_has_its_error(exit_code: int, errors: bytes, error: type[TransportError], words: str) -> None:
    agent = RemoteAgent("/py", "load" if error is RemotePrefixError else None, "/data")
    failure = agent.explain("a", exit_code, errors, b"", "srun")
    with pytest.raises(error, match=words):
        raise failure


def test_the_output_of_the_shell_is_reported_if_standard_error_is_empty() -> None:
    failure = RemoteAgent("/py").explain("a", 1, b"", b"Your password has expired.\n", "ssh")
    assert str(failure).startswith("the agent on the host 'a' did not start (exit code 1): Your password has expired. ")


def test_the_last_line_of_an_agent_is_not_that_of_the_prefix() -> None:
    assert last_words(b"loading\n" + SENTINEL) == ""
    assert last_words(b"loading\n" + SENTINEL + b"first\nlast\n") == "last"


def test_a_prefix_that_may_have_ended_the_shell_is_named() -> None:
    agent = RemoteAgent("/usr/bin/python3", "exec true")
    assert "if --remote-prefix has exec or exit" in str(agent.explain("server1", 0, b"", b"", "ssh"))
