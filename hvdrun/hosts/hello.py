"""An agent's first message: which version of hvdrun its host has."""

import asyncio
import sys

from hvdrun.errors import LaunchError
from hvdrun.hosts.agent_pool import AgentPool
from hvdrun.spec.jobspec import JobSpec
from hvdrun.version import __version__
from rendezvous.wire.orders import Hello

HELLO_SECONDS = 30.0  # an agent says hello as soon as Python has started; a host may be busy


async def check_version(pool: AgentPool, host: str, spec: JobSpec) -> None:
    """Wait for the hello of this host's agent, and refuse an agent of another version.

    The rendezvous limits the wait for a local agent by --start-timeout.

    Raises:
        LaunchError: the agent has another version, has stopped, or has said nothing.
    """
    is_remote = spec.is_remote(host)
    try:
        async with asyncio.timeout(HELLO_SECONDS if is_remote else None):
            while not isinstance(hello := await pool.hear(host), Hello):
                pass
    except TimeoutError:
        raise LaunchError(
            f"the agent on the host {host!r} said nothing within {HELLO_SECONDS:g} s: look whether the machine is "
            "overloaded or its connection stalls, and start again."
        ) from None
    if hello.version != __version__:
        from hvdrun.transport.transport_errors import VersionMismatchError  # noqa: PLC0415 - only a failure needs it

        interpreter = sys.executable
        if is_remote:
            interpreter = spec.remote.interpreter
        raise VersionMismatchError(host, interpreter, hello.version, __version__)
