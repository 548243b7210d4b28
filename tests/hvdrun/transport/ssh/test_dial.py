"""Connecting to real OpenSSH servers, and to what is none."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.transport.ssh.dial import Connection, dial
from hvdrun.transport.ssh.ssh_errors import (
    ConnectionDroppedError,
    ConnectionRefusedError,  # noqa: A004 - the builtin one is an OSError
    JumpFailedError,
    TimedOutError,
    UnknownHostError,
)
from tests.hvdrun.transport.ssh.servers import Home, SshServer, needs_sshd, reach, serving
from tests.ports import reserve_port
from tests.waiting import wait_until

pytestmark = needs_sshd


@contextmanager
def listening(answer: bytes | None, *, times: int | None = None, greeting: bytes = b"") -> Iterator[int]:
    """A server that is no ssh server: answers and closes, or, with None or after so many times, is silent; its port.

    greeting: what it sends first in any case.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        kept: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                kept.append(connection)
                connection.sendall(greeting)
                if answer is not None and (times is None or len(kept) <= times):
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)
            for connection in kept:
                connection.close()


def test_many_simultaneous_logins_all_succeed_where_the_server_takes_two_at_a_time(home: Home, tmp_path: Path) -> None:
    with serving(tmp_path / "busy", options=("MaxStartups 2:100:2",)) as server:
        server.authorize(home.key)
        home.trust(server)
        reach(*[home.target(server)] * 10)


@pytest.mark.parametrize("times", [None, 1], ids=["at a pause", "in the midst of an attempt"])
def test_a_server_that_ends_each_connection_is_reported_after_the_limit(home: Home, times: int | None) -> None:
    with (
        listening(b"", times=times) as port,
        pytest.raises(ConnectionDroppedError, match=r"times in \d s .*MaxStartups"),
    ):
        reach(replace(home.target(), port=port), limit_seconds=2.0)


@pytest.mark.parametrize(("greeting", "stage"), [(b"", "silent"), (b"SSH-2.0-test\r\n", "agreeing on keys")])
def test_a_silent_server_is_reported_after_the_limit(home: Home, greeting: bytes, stage: str) -> None:
    before = set(threading.enumerate())
    with (
        listening(None, greeting=greeting) as port,
        pytest.raises(TimedOutError, match=rf"no answer within 1 s \(.*{stage}\)"),
    ):
        reach(replace(home.target(), port=port), limit_seconds=1.0)
    wait_until(lambda: set(threading.enumerate()) <= before, "the end of the threads")


def test_a_jump_host_is_left_without_blocking_the_event_loop(
    home: Home, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    close = Connection.close

    def note(connection: Connection) -> None:
        threads.append(threading.current_thread())
        close(connection)

    monkeypatch.setattr(Connection, "close", note)
    jump = home.target(server)
    with pytest.raises(JumpFailedError):
        reach(replace(jump, port=1, via=jump))
    assert threads
    assert threading.main_thread() not in threads


def test_a_port_without_a_listener_is_reported_as_refused(home: Home) -> None:
    with reserve_port() as port, pytest.raises(ConnectionRefusedError, match=f"127.0.0.1 port {port}: .*--ssh-port"):
        reach(replace(home.target(), port=port))


def test_only_addresses_of_the_configured_family_are_used(home: Home, server: SshServer) -> None:
    home.configure("AddressFamily inet6\n")
    with pytest.raises(UnknownHostError):
        reach(home.target(server))


def test_a_connection_that_is_not_taken_times_out(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        waiting = [socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(4)]
        for client in waiting:
            client.connect_ex(full.getsockname())
        with pytest.raises(TimedOutError, match=r"within 0\.3 s \(connecting\)"):
            reach(replace(home.target(), port=full.getsockname()[1]), limit_seconds=0.3)
        for client in waiting:
            client.close()


@pytest.mark.parametrize(
    ("host", "advice"),
    [
        ("sever1.invalid", "did you mean server1.invalid"),
        ("quite-another.invalid", "check its spelling"),
        ("x" * 300, "check its spelling"),
    ],
)
def test_an_unknown_name_is_reported_with_a_similar_one(home: Home, host: str, advice: str) -> None:
    home.known_hosts.write_text("server1.invalid ssh-rsa a2V5\n", encoding="utf-8")
    with pytest.raises(UnknownHostError, match=advice) as caught:
        reach(home.target(host=host))
    assert caught.value.host == host


def test_a_host_is_reached_through_two_jump_hosts(home: Home, server: SshServer, tmp_path: Path) -> None:
    with serving(tmp_path / "jump") as jump:
        jump.authorize(home.key)
        home.trust(server, jump)
        user = home.target().user
        home.configure(
            f"Host far\n HostName 127.0.0.1\n Port {server.port}\n ProxyJump {user}@127.0.0.1:{jump.port},near\n"
            f"Host near\n HostName 127.0.0.1\n Port {server.port}\n"
        )
        target = home.target(host="far")
        assert target.via is not None
        assert target.via.via is not None
        reach(target)


def test_an_error_of_a_jump_host_names_that_host(home: Home, server: SshServer, tmp_path: Path) -> None:
    with reserve_port() as closed, serving(tmp_path / "jump", options=("AllowTcpForwarding no",)) as jump:
        home.trust(server, jump)
        home.configure(
            f"Host closed\n HostName 127.0.0.1\n Port {closed}\n ProxyJump good\n"
            f"Host far\n HostName 127.0.0.1\n Port {server.port}\n ProxyJump bad\n"
            f"Host good\n HostName 127.0.0.1\n Port {server.port}\n"
            f"Host bad\n HostName 127.0.0.1\n Port {jump.port}\n"
        )

        with pytest.raises(
            JumpFailedError,
            match=r"'far' through the jump host 'bad' failed: .*let .* log in.* Make 'ssh far true' work",
        ):
            reach(home.target(host="far"))
        jump.authorize(home.key)
        with pytest.raises(JumpFailedError, match=r"'far' through the jump host 'bad' failed: .*prohibited"):
            reach(home.target(host="far"))
        with pytest.raises(JumpFailedError, match=r"'closed' through the jump host 'good' .*it cannot connect"):
            reach(home.target(host="closed"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sh -c 'echo no way >&2; exit 1'", "no way"),
        ("/no/such/command", "(not found|No such file)"),
        ("false", "exit code 1"),
    ],
)
def test_a_failing_proxy_command_is_reported_with_its_last_line(home: Home, command: str, words: str) -> None:
    home.configure(f"Host far\n ProxyCommand {command}\n")
    with pytest.raises(JumpFailedError, match=f"'far' through its ProxyCommand failed: .*{words}"):
        reach(home.target(host="far"))


def test_a_command_that_hangs_is_ended(home: Home) -> None:
    home.configure("Host far\n ProxyCommand sleep 600\n")
    with pytest.raises(TimedOutError, match="silent"):
        reach(home.target(host="far"), limit_seconds=0.5)


def test_a_login_that_is_given_up_ends_with_its_thread(home: Home) -> None:
    async def scenario(port: int) -> None:
        dialling = asyncio.create_task(dial(replace(home.target(), port=port), 600))
        await asyncio.sleep(0.1)  # long enough to be somewhere in the middle; anywhere is right
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling

    before = set(threading.enumerate())
    with listening(None) as port:
        asyncio.run(scenario(port))
    wait_until(lambda: set(threading.enumerate()) <= before, "the end of the threads")
