"""The ways to the remote hosts of a job, as its options and the ssh configuration have them."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from hvdrun.jobspec import JobSpec
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.start import RemoteAgent
from hvdrun.transport.ssh.target import resolve_target
from hvdrun.transport.ssh.transport import SshTransport
from hvdrun.transport.transport import MAX_AT_ONCE


def reach_remote(hosts: Iterable[str], spec: JobSpec, gate: asyncio.Semaphore | None = None) -> dict[str, SshTransport]:
    """The transports for these hosts, by host; none is open.

    gate: bounds how many log in at the same time; one of their own unless given.

    Raises:
        BadSshConfigError, JumpFailedError: what is configured for one of them cannot be understood.
    """
    config = SshConfig.read(Path.home())
    agent = RemoteAgent(spec.remote.interpreter, spec.remote_prefix, str(spec.directory), spec.patience_seconds)
    gate = gate or asyncio.Semaphore(MAX_AT_ONCE)
    return {
        host: SshTransport(
            resolve_target(
                host,
                config=config,
                user=spec.users.get(host),
                port=spec.ssh.port,
                identity_file=spec.ssh.identity_file,
                accept_new=spec.ssh.accept_new,
            ),
            agent,
            gate,
        )
        for host in hosts
    }
