"""Why an agent could not be started on a host: each failure one sentence with its remedy.

All have `host`, as the user named it, so that whoever shows several at once can group them.
"""

from hvdrun.errors import LaunchError


class TransportError(LaunchError):
    """Base of all failures of one host."""

    def __init__(self, host: str, sentence: str) -> None:
        super().__init__(sentence)
        self.host = host


class AgentStartError(TransportError):
    """The agent did not start, for a reason that has no class of its own."""

    def __init__(self, host: str, how: str, said: str) -> None:
        words = f": {said}" if said else ""
        super().__init__(host, f"the agent on the host {host!r} did not start ({how}){words.rstrip('.')}.")
        self.how = how
        self.said = said


class RemotePrefixError(TransportError):
    """The command that prepares the host failed."""

    def __init__(self, host: str, prefix: str, code: int, said: str) -> None:
        words = f" ({said})" if said else ""
        super().__init__(
            host,
            f"the remote prefix {prefix!r} failed on the host {host!r} with exit code {code}{words}: correct it, or "
            "end it with '; true' if that is no fault.",
        )
        self.prefix = prefix
        self.code = code
        self.said = said


class DirectoryMissingError(TransportError):
    """The working directory does not exist on the host."""

    def __init__(self, host: str, directory: str) -> None:
        super().__init__(
            host,
            f"the directory {directory!r} does not exist on the host {host!r}: create it there, or name another with "
            "--wdir.",
        )
        self.directory = directory


class PythonMissingError(TransportError):
    """The interpreter does not exist on the host, or cannot be executed."""

    def __init__(self, host: str, python: str, reason: str) -> None:
        super().__init__(
            host,
            f"there is no Python {python!r} on the host {host!r} ({reason}): install it there, or name the host's own "
            "with --remote-python.",
        )
        self.python = python
        self.reason = reason


class PythonTooOldError(TransportError):
    """The interpreter on the host is older than hvdrun needs."""

    def __init__(self, host: str, python: str) -> None:
        super().__init__(
            host,
            f"the Python {python!r} on the host {host!r} is older than 3.11, which hvdrun needs: name another with "
            "--remote-python.",
        )
        self.python = python


class HvdrunMissingError(TransportError):
    """The interpreter on the host has no hvdrun."""

    def __init__(self, host: str, python: str, version: str) -> None:
        super().__init__(
            host,
            f"hvdrun is missing for {python!r} on the host {host!r}: install it there with  "
            f"{python} -m pip install hvdrun=={version}  or name another interpreter with --remote-python.",
        )
        self.python = python
        self.version = version


class VersionMismatchError(TransportError):
    """The host has another version of hvdrun."""

    def __init__(self, host: str, python: str, theirs: str, ours: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} has hvdrun {theirs}, but this is hvdrun {ours}: install the same there with  "
            f"{python} -m pip install hvdrun=={ours}",
        )
        self.python = python
        self.theirs = theirs
        self.ours = ours


class NoTunnelError(TransportError):
    """The host does not reach this machine, and the command that starts its agent carries no connections."""

    def __init__(self, host: str, name: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} reaches no address of this machine, and {name} makes no tunnel: let the host connect "
            "to this machine, or run hvdrun on one of the job's hosts.",
        )
