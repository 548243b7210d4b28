"""Why a host could not be reached over ssh: each failure one sentence with its remedy."""

from hvdrun.transport.failures import TransportError


class SshError(TransportError):
    """Base of all failures of one host over ssh."""


class BadSshConfigError(SshError):
    """What an ssh configuration file says for this host cannot be understood."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, f"the ssh configuration for the host {host!r} cannot be read: {reason}.")
        self.reason = reason


class UnknownHostError(SshError):
    """The name leads to no address."""

    def __init__(self, host: str, address: str, reason: str, suggestion: str | None = None) -> None:
        name = repr(host) if address == host else f"{host!r} ({address} by the ssh configuration)"
        remedy = f"did you mean {suggestion}?" if suggestion else "check its spelling, or give its address."
        super().__init__(host, f"the host {name} cannot be found ({reason}): {remedy}")
        self.address = address
        self.reason = reason
        self.suggestion = suggestion


class ConnectionRefusedError(SshError):  # noqa: A001 - says what it is; the builtin one is an OSError, and never meant here
    """Nobody listens on the ssh port."""

    def __init__(self, host: str, address: str, port: int) -> None:
        super().__init__(
            host,
            f"the host {host!r} refused the ssh connection to {address} port {port}: start an ssh server there, or "
            "give the port that it listens on with --ssh-port.",
        )
        self.address = address
        self.port = port


class UnreachableError(SshError):
    """The network has no way to the host, or broke the connection off."""

    def __init__(self, host: str, address: str, port: int, reason: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} cannot be reached at {address} port {port} ({reason}): check that it is up, and the "
            "network and firewalls on the way.",
        )
        self.address = address
        self.port = port
        self.reason = reason


class TimedOutError(SshError):
    """The host did not answer in time; `stage` says what was waited for."""

    def __init__(self, host: str, address: str, port: int, seconds: float, stage: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} at {address} port {port} gave no answer within {seconds:g} s ({stage}): check that it "
            "is up, that this is its ssh port, and the firewalls on the way.",
        )
        self.address = address
        self.port = port
        self.seconds = seconds
        self.stage = stage


class ConnectionDroppedError(SshError):
    """The server ended every connection before anybody could log in."""

    def __init__(self, host: str, address: str, port: int, *, attempts: int, seconds: float, reason: str) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(
            host,
            f"the ssh server of the host {host!r} at {address} port {port} ended the connection before the login "
            f"{times} in {seconds:.0f} s ({reason}): see its log; with many logins at once, raise MaxStartups in its "
            "sshd_config.",
        )
        self.address = address
        self.port = port
        self.attempts = attempts
        self.reason = reason


class NotSshError(SshError):
    """Something listens on the port, but it does not speak ssh as hvdrun does."""

    def __init__(self, host: str, address: str, port: int, reason: str) -> None:
        super().__init__(
            host,
            f"no ssh connection to the host {host!r} at {address} port {port} could be agreed on ({reason}): check "
            "that this is the port of its ssh server.",
        )
        self.address = address
        self.port = port
        self.reason = reason


class JumpFailedError(SshError):
    """The way to the host leads over another, or through a command, and ends there."""

    def __init__(self, host: str, jump: str, reason: str) -> None:
        super().__init__(host, f"the way to the host {host!r} through {jump} failed: {reason.rstrip('.')}.")
        self.jump = jump
        self.reason = reason


class TunnelRefusedError(SshError):
    """The ssh server opens no port for the rendezvous."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(
            host,
            f"the ssh server of the host {host!r} opens no port for the rendezvous ({reason}): set AllowTcpForwarding "
            "to yes in its sshd_config, or let the host reach the launcher directly.",
        )
        self.reason = reason
