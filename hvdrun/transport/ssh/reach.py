"""The ways to the remote hosts of a job, as its options and the ssh configuration have them."""

import asyncio
import threading
from functools import partial

from hvdrun.spec.jobspec import JobSpec
from hvdrun.transport.account import find_home
from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.failures import BadSshConfigError
from hvdrun.transport.ssh.match_commands import MatchCommands
from hvdrun.transport.ssh.target import Target, resolve_target
from hvdrun.transport.ssh.transport import SshTransport
from hvdrun.transport.start import make_agent
from hvdrun.transport.transport import MAX_AT_ONCE


class SshTransports:
    """Makes the transports of one job; its ssh configuration is read once, when the first of them is opened."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(MAX_AT_ONCE)
        self._commands = MatchCommands()
        self._config: SshConfig | None = None
        self._reading = threading.Lock()

    def make(self, host: str, spec: JobSpec) -> SshTransport:
        """The transport to a host; it is not open, and nothing is known of where the host's name leads."""
        return SshTransport(host, partial(self._resolve, host, spec), make_agent(spec), self._gate)

    def close(self) -> None:
        """End the commands of the ssh configuration that still run."""
        self._commands.close()

    def _resolve(self, host: str, spec: JobSpec) -> Target:
        """Blocks while files are read and commands of `Match exec` run."""
        return resolve_target(
            host,
            config=self._read_config(host),
            user=spec.remote.users.get(host),
            port=spec.remote.ssh_port,
            identity_file=spec.remote.ssh_identity_file,
            accept_new=spec.remote.ssh_accept_new,
        )

    def _read_config(self, host: str) -> SshConfig:
        with self._reading:
            if self._config is None:
                try:
                    self._config = SshConfig.read(find_home(), commands=self._commands)
                except ValueError as error:
                    raise BadSshConfigError(host, str(error)) from error
            return self._config
