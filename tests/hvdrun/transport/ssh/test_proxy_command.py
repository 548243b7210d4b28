"""ProxyCommand as a process."""

from pathlib import Path

import pytest

from hvdrun.transport.ssh.proxy_command import ProxyCommand
from tests.hvdrun.agent.sleepers import files_left, is_alive
from tests.waiting import wait_until


def test_the_command_s_input_and_output_are_the_socket() -> None:
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


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    proxy = ProxyCommand("a", f"sh -c 'sleep 600 & echo $! $$ >{pids}; echo up; wait'")
    assert proxy.socket.recv(3) == b"up\n"
    proxy.close()
    assert not proxy.has_failed
    started = [int(pid) for pid in pids.read_text(encoding="utf-8").split()]
    wait_until(lambda: not any(map(is_alive, started)))  # a signal takes its time on a busy machine


@pytest.mark.parametrize("count", range(3))
def test_where_files_run_out_no_descriptor_is_left_open(count: int) -> None:
    with files_left(count), pytest.raises(OSError, match="Too many"):
        ProxyCommand("a", "true")
