"""The commands of the ssh configuration as processes."""

import asyncio
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from hvdrun.processes.background import in_thread
from hvdrun.transport.ssh import commands as match_commands
from hvdrun.transport.ssh.commands import MatchCommands, ProxyCommand
from tests.hvdrun.agent.sleepers import files_left, is_alive
from tests.waiting import LIMIT_SECONDS, in_loop, wait_until


def test_many_that_ask_at_once_hear_of_one_run(tmp_path: Path) -> None:
    commands = MatchCommands()
    with ThreadPoolExecutor(20) as pool:
        command = f"echo >> {tmp_path}/runs; ! cat | grep ."  # nothing of our own standard input is for it
        assert all(pool.map(lambda number: commands.succeeds(f"host{number % 2}", command), range(20)))
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "\n\n"


def test_a_command_that_does_not_end_is_ended_as_a_whole_and_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pid"
    for limit_seconds in (1.0, 10.0, 50.0):  # a busy machine may need longer to start it
        monkeypatch.setattr(match_commands, "LIMIT_SECONDS", limit_seconds)
        assert not MatchCommands().succeeds("a", f"echo $$ > {path}; sleep 600; true")
        if path.exists() and path.read_text(encoding="utf-8"):
            break
    assert not is_alive(int(path.read_text(encoding="utf-8")))


@in_loop
async def test_a_command_that_the_kernel_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(match_commands, "_kill", started.append)  # it waits for a broken disk
    for limit in ("LIMIT_SECONDS", "_CLOSE_SECONDS"):
        monkeypatch.setattr(match_commands, limit, 0.1)
    check = partial(MatchCommands().succeeds, "a", "exec sleep 600")
    try:
        assert not await asyncio.wait_for(in_thread(check), LIMIT_SECONDS)
    finally:
        started[0].kill()
        started[0].wait()


@pytest.mark.parametrize("shell", ["/no/such/shell", ""])
def test_a_shell_that_is_not_there_is_no_success(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("SHELL", shell)
    assert MatchCommands().succeeds("a", "true") is (shell == "")


@in_loop
async def test_an_unexpected_error_of_the_first_caller_is_raised_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(subprocess, "Popen", fail)
    commands = MatchCommands()
    for _ in range(2):
        with pytest.raises(MemoryError):
            await asyncio.wait_for(in_thread(partial(commands.succeeds, "a", "true")), LIMIT_SECONDS)


def test_nothing_is_started_after_the_end() -> None:
    commands = MatchCommands()
    commands.close()
    assert not commands.succeeds("a", "true")


def test_its_input_and_output_are_the_socket() -> None:
    proxy = ProxyCommand("a", "tr a-z A-Z")
    proxy.socket.sendall(b"hello")
    proxy.socket.shutdown(1)
    assert proxy.socket.recv(100) == b"HELLO"
    proxy.close()
    assert not proxy.has_failed


def test_the_last_line_of_a_proxy_command_is_kept() -> None:
    proxy = ProxyCommand("a", "sh -c 'echo first >&2; echo last >&2; exit 3'")
    assert proxy.socket.recv(1) == b""
    assert proxy.close() == "last"
    assert proxy.has_failed
    assert proxy.close() == "last"


def test_one_that_goes_on_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    proxy = ProxyCommand("a", f"sh -c 'sleep 600 & echo $! $$ >{pids}; echo up; wait'")
    assert proxy.socket.recv(3) == b"up\n"
    proxy.close()
    assert not proxy.has_failed
    started = [int(pid) for pid in pids.read_text(encoding="utf-8").split()]
    wait_until(lambda: not any(map(is_alive, started)))  # a signal takes its time on a busy machine


@pytest.mark.parametrize("count", range(3))
def test_where_files_run_out_none_is_left_open(count: int) -> None:
    with files_left(count), pytest.raises(OSError, match="Too many"):
        ProxyCommand("a", "true")
