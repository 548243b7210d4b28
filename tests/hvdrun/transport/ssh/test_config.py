"""The ssh configuration: files of the user and the machine, and what they include."""

from pathlib import Path

import pytest

from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.failures import BadSshConfigError


def read(tmp_path: Path, text: str, system: str | None = None, **included: str) -> SshConfig:
    folder = tmp_path / ".ssh"
    folder.mkdir()
    (folder / "config").write_text(text, encoding="utf-8")
    for name, content in included.items():
        (folder / name).write_text(content, encoding="utf-8")
    if system is not None:
        (tmp_path / "ssh_config").write_text(system, encoding="utf-8")
    return SshConfig.read(tmp_path, system=tmp_path / "ssh_config")


def test_no_file_says_nothing(tmp_path: Path) -> None:
    config = SshConfig.read(tmp_path, system=tmp_path / "none")
    assert config.lookup("a") == {"hostname": "a"}
    assert config.names == frozenset()


def test_the_first_value_counts_and_the_user_comes_before_the_machine(tmp_path: Path) -> None:
    config = read(tmp_path, "Host a\n  Port 1\nHost *\n  Port 2\n", "User machine\nHost a\n  Port 3\n")
    assert config.lookup("a")["port"] == "1"
    assert config.lookup("b")["port"] == "2"
    assert config.lookup("b")["user"] == "machine"


def test_the_command_line_wins_in_commands_too(tmp_path: Path) -> None:
    config = read(tmp_path, "Host a\n  User file\n  Port 1\n  ProxyCommand go %r %h %p\n")
    assert config.lookup("a")["proxycommand"] == "go file a 1"
    found = config.lookup("a", "ada", 2)
    assert (found["user"], found["port"], found["proxycommand"]) == ("ada", "2", "go ada a 2")


def test_included_files_stand_where_they_are_included(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        'Include one "two"  # both\nInclude none\nHost b\n  Include three\n  Port 5\n',
        one="Host a\n  Port 1\n",
        two=f"Include {tmp_path}/.ssh/thr*\n",
        three="User three\n",
    )
    assert config.lookup("a")["port"] == "1"
    assert (config.lookup("b")["port"], config.lookup("b")["user"]) == ("5", "three")


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    assert read(tmp_path, "Port 7\nInclude config\n").lookup("a")["port"] == "7"


def test_comments_behind_a_value_are_no_part_of_it(tmp_path: Path) -> None:
    config = read(tmp_path, "Port 7 # seven\nProxyCommand a # b\n")
    assert (config.lookup("a")["port"], config.lookup("a")["proxycommand"]) == ("7", "a # b")


@pytest.mark.parametrize(
    "criteria",
    [
        "tagged a",
        "localnetwork 10.0.0.0/8",
        "host a sessiontype exec",
        "exec false",
        'exec "cat; false"',
        "!final colour x",
    ],
)
def test_a_section_whose_condition_cannot_be_decided_does_not_apply(tmp_path: Path, criteria: str) -> None:
    assert "user" not in read(tmp_path, f"Match {criteria}\n User wrong\n").lookup("a")


@pytest.mark.parametrize(
    "criteria",
    [
        "all",
        "host a",
        "final host a",
        "!host b",
        'exec "true"',
        "originalhost a",
        'exec "echo %h | grep -q ^a$"',
        "!exec false host a",
    ],
)
def test_a_section_whose_condition_is_met_applies(tmp_path: Path, criteria: str) -> None:
    assert read(tmp_path, f"Match {criteria}\n User right\n").lookup("a")["user"] == "right"


def test_names_without_wildcards_are_known(tmp_path: Path) -> None:
    assert read(tmp_path, "Host a b* !c\nhost = d\nMatch host e\n").names == {"a", "d"}


@pytest.mark.parametrize("text", ["Nonsense\n", "Match\n", "CanonicalizeHostname yes\n"])
def test_what_cannot_be_understood_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSshConfigError, match=r"^the ssh configuration for the host 'a' cannot be read: .+\.$"):
        read(tmp_path, text).lookup("a")
