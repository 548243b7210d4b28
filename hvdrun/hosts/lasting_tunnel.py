"""The tunnel of an agent that outlives its launcher, and the connection through which it leads.

A host that reaches no port of this machine reaches the rendezvous by a port of its own loopback, which the SSH
connection forwards. When that connection ends, or the launcher with it, another login opens the same port again: the
agent tries no other.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from hvdrun.errors import LaunchError
from hvdrun.processes.background import cancel_and_wait, supervise

_FIRST_PAUSE_SECONDS = 0.5  # sshd may keep the port for a moment
_PAUSE_GROWTH = 2.0
WHEN_KILLED = "when its server was killed"


class Login(Protocol):
    """A connection that starts no agent."""

    async def reopen_tunnel(self, port: int, remote: int) -> None:
        """Log in, and let the host connect by this port of its loopback to a port of this machine's.

        Raises:
            LaunchError: there is no login, or the host does not give the port.
        """

    async def wait_lost(self) -> None:
        """Wait until the connection has ended."""

    async def kill(self) -> None:
        """Close the connection."""


class LastingTunnel:
    """Opens the tunnel of one agent again whenever its connection has ended, for a limited time each.

    Args:
        host: of the agent.
        make: makes a login, which is not connected.
        warn: prints a sentence.
        limit_seconds: how long it tries. Not longer than the lease, since the host is lost then.
    """

    def __init__(self, host: str, make: Callable[[], Login], warn: Callable[[str], None], limit_seconds: float) -> None:
        self._host = host
        self._make = make
        self._warn = warn
        self._limit_seconds = limit_seconds
        self._keeping: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def keep(self, port: int, remote: int, fail: Callable[[BaseException], None]) -> None:
        """Open it again, now and whenever it ends, until `close`.

        Args:
            port: of this machine's loopback address.
            remote: of the host's.
            fail: takes an unexpected error.
        """
        if not self._is_closed:
            task = asyncio.create_task(self._keep(port, remote), name="keep a tunnel")
            self._keeping.add(supervise(task, fail))

    async def close(self) -> None:
        """Close the connection, and open no other."""
        self._is_closed = True
        await cancel_and_wait(self._keeping)

    async def _keep(self, port: int, remote: int) -> None:
        while (login := await self._reopen(port, remote)) is not None:
            try:
                await login.wait_lost()
            finally:
                await login.kill()

    async def _reopen(self, port: int, remote: int) -> Login | None:
        """The login that has opened the tunnel; None where none has until the limit."""
        failure: LaunchError | None = None
        pause_seconds = _FIRST_PAUSE_SECONDS
        try:
            async with asyncio.timeout(self._limit_seconds):
                while True:
                    login = self._make()
                    try:
                        await login.reopen_tunnel(port, remote)
                    except BaseException as error:
                        await login.kill()
                        if not isinstance(error, LaunchError):
                            raise
                        failure = error
                    else:
                        failure = None
                        return login
                    await asyncio.sleep(pause_seconds)
                    pause_seconds *= _PAUSE_GROWTH
        except TimeoutError:
            return None
        finally:
            if failure is not None:
                self._warn(explain_lost_tunnel(self._host, failure))


def explain_lost_tunnel(host: str, failure: LaunchError) -> str:
    """That the agent of a host cannot be reached again, in one sentence."""
    reason = str(failure).rstrip(".")
    return f"hvdrun cannot reach {host} again, and workers that run there train on until --server-timeout: {reason}."


def explain_ssh_agent(hosts: Sequence[str], whens: Sequence[str]) -> str:
    """That the ssh agent alone has the key of these hosts, in one sentence.

    whens: when the job logs in there again.
    """
    named = hosts[0] if len(hosts) == 1 else f"{hosts[0]} and {len(hosts) - 1} more"
    when = " and ".join(whens)
    return (
        f"the SSH agent alone has the key of {named}: where it has ended, as with your login, the job cannot log in "
        f"there again {when}; name the file of a key with -i."
    )
