"""The commands of `Match exec`: each runs once per host, with an end."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hvdrun.transport.ssh import match_commands
from hvdrun.transport.ssh.match_commands import MatchCommands
from tests.hvdrun.agent.sleepers import is_alive


def test_many_that_ask_at_once_hear_of_one_run(tmp_path: Path) -> None:
    commands = MatchCommands()
    with ThreadPoolExecutor(20) as pool:
        command = f"echo >> {tmp_path}/runs; ! cat | grep ."  # nothing of our own standard input is for it
        assert all(pool.map(lambda number: commands.succeeds(f"host{number % 2}", command), range(20)))
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "\n\n"


def test_a_command_that_does_not_end_is_ended_as_a_whole_and_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_commands, "LIMIT_SECONDS", 1.0)
    assert not MatchCommands().succeeds("a", f"echo $$ > {tmp_path}/pid; sleep 600; true")
    assert not is_alive(int((tmp_path / "pid").read_text(encoding="utf-8")))


@pytest.mark.parametrize("shell", ["/no/such/shell", ""])
def test_a_shell_that_is_not_there_is_no_success(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert MatchCommands().succeeds("a", "true") is (shell == "")


def test_nothing_is_started_after_the_end() -> None:
    commands = MatchCommands()
    commands.close()
    assert not commands.succeeds("a", "true")
