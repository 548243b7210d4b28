"""Why an agent could not be started on a host: each failure is one sentence with its remedy.

All have `host`, the name that the user gave, so that the console can group them.
"""

from hvdrun.errors import LaunchError
from hvdrun.spec.redaction import redact_script


class TransportError(LaunchError):
    """Base of all failures of one host."""

    def __init__(self, host: str, sentence: str) -> None:
        super().__init__(sentence)
        self.host = host


class AgentStartError(TransportError):
    """The agent did not start, for a reason without another class.

    Cause: The command that logs in to the host failed, or the agent ended while it started.
    Remedy: Run a command there as hvdrun does, with ssh or the words of `--rsh`, such as `PYTHON -m hvdrun --version`.

    Args:
        host: its name in the job.
        how: how the command ended.
        said: the last words of the agent or its shell; or "".
        remedy: a sentence without a full stop; "" where the agent has explained the failure.
    """

    def __init__(self, host: str, how: str, said: str, remedy: str) -> None:
        words = f": {said}" if said else ""
        advice = f" {remedy}." if remedy else ""
        super().__init__(host, f"the agent on the host {host!r} did not start ({how}){words.rstrip('.')}.{advice}")


def advise_to_try(way: str) -> str:
    """The remedy where no command ran on a host; `way` is the program that should have run it there."""
    return f"Check that you can run a command there with {way}"


class RemotePrefixError(TransportError):
    """The command of --remote-prefix failed.

    Cause: The command of `--remote-prefix` ends with an error on the host.
    Remedy: Try it there by hand. End it with `; true` if its exit code does not matter.
    """

    def __init__(self, host: str, prefix: str, code: int, said: str) -> None:
        words = f" ({said})" if said else ""
        super().__init__(
            host,
            f"the remote prefix {redact_script(prefix)!r} failed on the host {host!r} with exit code {code}{words}: "
            "correct it, or end it with '; true' if the exit code does not matter.",
        )
        self.code = code
        self.said = said


class DirectoryMissingError(TransportError):
    """The working directory does not exist on the host.

    Cause: The host does not share the file system of this machine, or mounts it elsewhere.
    Remedy: Create the folder there, or name one that all hosts have with `--wdir`.
    """

    def __init__(self, host: str, directory: str) -> None:
        super().__init__(
            host,
            f"the directory {directory!r} does not exist on the host {host!r}: create it there, or name another with "
            "--wdir.",
        )


class PythonMissingError(TransportError):
    """The interpreter does not exist on the host, or cannot be executed.

    Cause: The host has its Python in another place.
    Remedy: Name it with `--remote-python`, or set up the environment with `--remote-prefix`.
    """

    def __init__(self, host: str, python: str, reason: str) -> None:
        super().__init__(
            host,
            f"there is no Python {python!r} on the host {host!r} ({reason}): install it there, or name the host's own "
            "with --remote-python.",
        )


class PythonTooOldError(TransportError):
    """The interpreter on the host is older than hvdrun needs.

    Cause: The Python of that name on the host is older than 3.11.
    Remedy: Name a newer one with `--remote-python`.
    """

    def __init__(self, host: str, python: str) -> None:
        super().__init__(
            host,
            f"the Python {python!r} on the host {host!r} is older than 3.11, which hvdrun needs: name another with "
            "--remote-python.",
        )


class HvdrunMissingError(TransportError):
    """The interpreter on the host has no hvdrun.

    Cause: hvdrun is installed here, but not for the Python of that host.
    Remedy: Install the same version there, or name the Python that has it with `--remote-python`.
    """

    def __init__(self, host: str, python: str, version: str) -> None:
        super().__init__(
            host,
            f"hvdrun is missing for {python!r} on the host {host!r}: install there the wheel or checkout of version "
            f"{version} that is installed here ({python} -m pip install FILE), or name another interpreter with "
            "--remote-python.",
        )


class VersionMismatchError(TransportError):
    """The host has another version of hvdrun.

    Cause: The hosts have two versions of hvdrun, and each version has its own protocol; or another one was installed
        while the job ran.
    Remedy: Install the version of the job on every host.
    """

    def __init__(self, host: str, python: str, theirs: str, ours: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} has hvdrun {theirs}, but this is hvdrun {ours}: install the wheel or checkout of "
            f"version {ours} there ({python} -m pip install FILE).",
        )
        self.theirs = theirs
        self.ours = ours


class NoTunnelError(TransportError):
    """The host cannot connect to this machine, and the command that starts its agent has no tunnel.

    Cause: The host cannot connect to this machine, and `--rsh` or the scheduler's command has no tunnel.
    Remedy: Let the firewall admit the host's connections, or run hvdrun on one of the hosts.
    """

    def __init__(self, host: str, name: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} reaches no address of this machine, and {name} has no tunnel: let the host connect "
            "to this machine, or run hvdrun on one of the job's hosts.",
        )
