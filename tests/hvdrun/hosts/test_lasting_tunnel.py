"""The tunnel of an agent that outlives its launcher: it is opened again by another login, or its loss is said."""

import asyncio

import pytest

from hvdrun.errors import LaunchError
from hvdrun.hosts.lasting_tunnel import WHEN_KILLED, LastingTunnel, explain_ssh_agent
from tests.waiting import happen, in_loop


class Host:
    """Gives its port to the logins of a test.

    refusals: how many logins fail before one has success.
    """

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.opened: list[tuple[int, int]] = []
        self.killed = 0
        self.lost = asyncio.Event()
        self.said: list[str] = []
        self.bugs: list[BaseException] = []

    def tunnel(self, limit_seconds: float = 30.0) -> LastingTunnel:
        """A tunnel to this host, which tries for so long."""
        return LastingTunnel("host1", lambda: PlayedLogin(self), self.said.append, limit_seconds)


class PlayedLogin:
    """A connection with the host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def reopen_tunnel(self, port: int, remote: int) -> None:
        """See `Login`."""
        if self._host.refusals:
            self._host.refusals -= 1
            raise LaunchError("the port is in use.")
        self._host.opened.append((port, remote))

    async def wait_lost(self) -> None:
        """See `Login`."""
        await self._host.lost.wait()
        self._host.lost.clear()

    async def kill(self) -> None:
        """See `Login`."""
        self._host.killed += 1


class BrokenLogin(PlayedLogin):
    """A connection that meets a bug."""

    async def reopen_tunnel(self, port: int, remote: int) -> None:
        """See `Login`."""
        raise ZeroDivisionError(f"{port} {remote}")


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdrun.hosts.lasting_tunnel._FIRST_PAUSE_SECONDS", 0.001)


@in_loop
async def test_the_same_port_is_opened_again_whenever_the_connection_has_ended() -> None:
    host = Host(refusals=2)
    tunnel = host.tunnel()
    tunnel.keep(1, 2, host.bugs.append)
    await happen(lambda: host.opened == [(1, 2)])
    host.lost.set()
    await happen(lambda: host.opened == [(1, 2)] * 2)
    await tunnel.close()
    assert (host.killed, host.said, host.bugs) == (4, [], [])


@in_loop
async def test_an_unexpected_error_goes_to_the_owner_of_the_tunnel() -> None:
    host = Host()
    tunnel = LastingTunnel("host1", lambda: BrokenLogin(host), host.said.append, 30.0)
    tunnel.keep(1, 2, host.bugs.append)
    await happen(lambda: [*map(type, host.bugs)] == [ZeroDivisionError])
    await tunnel.close()
    assert (host.killed, host.said) == (1, [])


@in_loop
async def test_a_port_that_is_not_given_until_the_limit_is_said() -> None:
    host = Host(refusals=1_000_000)
    tunnel = host.tunnel(0.01)
    tunnel.keep(1, 2, host.bugs.append)
    await happen(lambda: bool(host.said))
    await tunnel.close()
    (sentence,) = host.said
    assert sentence.startswith("hvdrun cannot reach host1 again, and workers that run there train on until ")
    assert sentence.endswith(": the port is in use.")


@in_loop
async def test_a_host_that_is_lost_meanwhile_has_its_sentence_too() -> None:
    host = Host(refusals=1_000_000)
    tunnel = host.tunnel()
    tunnel.keep(1, 2, host.bugs.append)
    await happen(lambda: host.refusals < 1_000_000)
    await tunnel.close()
    assert len(host.said) == 1


@in_loop
async def test_a_tunnel_that_was_closed_is_not_opened_again() -> None:
    host = Host()
    tunnel = host.tunnel()
    await tunnel.close()
    tunnel.keep(1, 2, host.bugs.append)
    await asyncio.sleep(0)
    assert (host.opened, host.said) == ([], [])


@pytest.mark.parametrize(("hosts", "named"), [(["host1"], "host1"), (["host1", "host2", "host3"], "host1 and 2 more")])
def test_an_ssh_agent_that_alone_has_the_key_is_named_with_its_hosts(hosts: list[str], named: str) -> None:
    said = explain_ssh_agent(hosts, ["after a loss", WHEN_KILLED])
    assert said.startswith(f"the SSH agent alone has the key of {named}: ")
    assert "cannot log in there again after a loss and when its server was killed; " in said
