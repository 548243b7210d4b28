"""Why a host could not be reached over ssh: each failure is one sentence with its remedy."""

from collections.abc import Sequence
from pathlib import Path

from hvdrun.transport.transport_errors import TransportError


class SshError(TransportError):
    """Base of all failures of one host over ssh."""


class BadSshConfigError(SshError):
    """The ssh configuration for this host is wrong.

    Cause: `~/.ssh/config` has a line that ssh refuses, or the program `ssh`, which reads it, is not installed.
    Remedy: `ssh -G HOST` shows the error. Correct the line, or install OpenSSH's client.
    """

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(host, f"the ssh configuration for the host {host!r} cannot be read: {reason}.")


class SshPolicyError(SshError):
    """The ssh configuration for this host asks for what hvdrun or this machine cannot do.

    Cause: `~/.ssh/config` allows only algorithms that hvdrun does not know, forbids logins with keys, or names an
    address that this machine does not have.
    Remedy: Change it for this host, or let OpenSSH log in, with `--rsh ssh`.
    """

    def __init__(self, host: str, reason: str, remedy: str) -> None:
        super().__init__(
            host,
            f"the ssh configuration for the host {host!r} {reason}: {remedy}, or let OpenSSH log in, with --rsh ssh.",
        )


class NoCommonAlgorithmError(SshError):
    """The ssh server takes no algorithm that hvdrun knows and the ssh configuration allows.

    Cause: The server is old, or one of the two configurations allows little.
    Remedy: Allow one of the named algorithms in its sshd_config, or another in `~/.ssh/config`.

    Args:
        host: the host.
        option: the keyword of ssh_config.
        allowed: the algorithms that the configuration allows.
    """

    def __init__(self, host: str, option: str, allowed: Sequence[str]) -> None:
        super().__init__(
            host,
            f"the ssh server of the host {host!r} takes none of the {option} that hvdrun knows and the ssh "
            f"configuration allows ({','.join(allowed)}): allow one of them in its sshd_config, or others in "
            "~/.ssh/config.",
        )
        self.option = option


class UnknownHostError(SshError):
    """The name has no address.

    Cause: The name is misspelled, or no name server knows it.
    Remedy: Check the spelling, or give the address.
    """

    def __init__(self, host: str, address: str, reason: str, suggestion: str | None = None) -> None:
        name = repr(host) if address == host else f"{host!r} ({address} by the ssh configuration)"
        remedy = f"did you mean {suggestion}?" if suggestion else "check its spelling, or give its address."
        super().__init__(host, f"the host {name} cannot be found ({reason}): {remedy}")


class ConnectionRefusedError(SshError):  # noqa: A001 - the builtin one is an OSError, which this package never means
    """No program listens on the ssh port.

    Cause: No ssh server runs on that port of the host.
    Remedy: Start one, or give its port with `--ssh-port`.
    """

    def __init__(self, host: str, address: str, port: int) -> None:
        super().__init__(
            host,
            f"the host {host!r} refused the ssh connection to {address} port {port}: start an ssh server there, or "
            "give the port of its ssh server with --ssh-port.",
        )


class UnreachableError(SshError):
    """The network has no route to the host, or broke the connection.

    Cause: The host is down, or the network has no route to it.
    Remedy: Check the host, the network, and the firewalls between.
    """

    def __init__(self, host: str, address: str, port: int, reason: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} cannot be reached at {address} port {port} ({reason}): check that it is up, and the "
            "network and the firewalls between.",
        )


class TimedOutError(SshError):
    """The host did not answer in time; `stage` says which step took too long.

    Cause: A firewall drops the packets, the host is down, or another program has the port.
    Remedy: Check with `ssh -v HOST`.
    """

    def __init__(self, host: str, address: str, port: int, seconds: float, stage: str) -> None:
        super().__init__(
            host,
            f"the host {host!r} at {address} port {port} gave no answer within {seconds:g} s ({stage}): check that it "
            "is up, that this is its ssh port, and the firewalls between.",
        )


class ConnectionDroppedError(SshError):
    """The server ended every connection before the login.

    Cause: The server admits few logins at a time, or has banned this address.
    Remedy: See its log. Raise `MaxStartups` in its sshd_config.
    """

    def __init__(self, host: str, address: str, port: int, *, attempts: int, seconds: float, reason: str) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(
            host,
            f"the ssh server of the host {host!r} at {address} port {port} ended the connection before the login "
            f"{times} in {seconds:.0f} s ({reason}): see its log; with many logins at once, raise MaxStartups in its "
            "sshd_config.",
        )


class NotSshError(SshError):
    """The port belongs to another program.

    Cause: The port belongs to another program.
    Remedy: Check `--ssh-port`, and `ssh -v HOST`.
    """

    def __init__(self, host: str, address: str, port: int, reason: str) -> None:
        super().__init__(
            host,
            f"no ssh connection to the host {host!r} at {address} port {port} could be agreed on ({reason}): check "
            "that this is the port of its ssh server.",
        )


class JumpFailedError(SshError):
    """The connection through a jump host or a command failed.

    Cause: The host is reached through another one (`ProxyJump`, `ProxyCommand`), and that connection failed.
    Remedy: Make `ssh HOST true` work.
    """

    def __init__(self, host: str, jump: str, reason: str) -> None:
        super().__init__(
            host,
            f"the connection to the host {host!r} through {jump} failed: {reason.rstrip('.')}. Make 'ssh {host} true' "
            "work, then start again.",
        )
        self.jump = jump
        self.reason = reason


class TunnelRefusedError(SshError):
    """The ssh server opens no port for the rendezvous.

    Cause: The host cannot connect to this machine, and its ssh server forbids forwarding.
    Remedy: Set `AllowTcpForwarding yes` there, or open the firewall towards this machine.

    Args:
        host: the host.
        reason: half a sentence.
        former: the port that a former connection had; 0 where there was none.
    """

    def __init__(self, host: str, reason: str, former: int = 0) -> None:
        what, remedy = (
            "opens no port for the rendezvous",
            "set AllowTcpForwarding to yes in its sshd_config, or let the host reach the launcher directly",
        )
        if former:
            what, remedy = f"opens port {former} not again", "the former connection may have the port still"
        super().__init__(host, f"the ssh server of the host {host!r} {what} ({reason}): {remedy}.")


class AuthenticationFailedError(SshError):
    """The server accepted none of the keys.

    Cause: No key of yours is in the `authorized_keys` of that user, or a key has a passphrase.
    Remedy: `ssh-copy-id HOST`, `ssh-add`, or name the key with `-i`.

    Args:
        host, user: where hvdrun tried to log in.
        methods: what the server allows.
        tried: the keys that it refused.
        unusable: keys that could not be used, and why.
        reason: why the attempt ended early; None if it did not.
    """

    def __init__(
        self,
        host: str,
        user: str,
        *,
        methods: Sequence[str],
        tried: Sequence[str],
        unusable: Sequence[str],
        reason: str | None = None,
    ) -> None:
        parts = [
            f"the server allows {', '.join(methods)}" if methods else "the server named no method",
            f"keys tried: {', '.join(tried) or 'none'}",
        ]
        if unusable:
            parts.append(f"not usable: {', '.join(unusable)}")
        if reason:
            parts.append(reason)

        super().__init__(
            host,
            f"the host {host!r} did not let {user!r} log in ({'; '.join(parts)}): "
            f"{_advise_login(user, methods, unusable)}",
        )

        self.user = user
        self.methods = tuple(methods)
        self.tried = tuple(tried)
        self.unusable = tuple(unusable)


class HostKeyUnknownError(SshError):
    """No known_hosts file has the key of the host, or the key of an authority that has certified it.

    Cause: You have never logged in to the host from here.
    Remedy: Log in once with ssh and compare the fingerprint, or add `--ssh-accept-new`.

    Args:
        host: the host.
        name: under which its key would be known.
        kind, fingerprint: its key.
        certificate: why the host's certificate is not accepted; None if it has none.
    """

    def __init__(self, host: str, name: str, kind: str, fingerprint: str, certificate: str | None = None) -> None:
        refusal = f"; its certificate is not accepted: {certificate}" if certificate else ""
        super().__init__(
            host,
            f"the key of the host {host!r} is unknown ({name}: {kind} {fingerprint}{refusal}): compare the fingerprint "
            "and log in once with ssh, or accept the keys of unknown hosts with --ssh-accept-new.",
        )
        self.name = name


class HostKeyChangedError(SshError):
    """The host shows another key than the known one. No option accepts it.

    Cause: The host was installed anew, or another machine answers in its place.
    Remedy: If you know that it was installed anew, remove the line that the message names.
    """

    def __init__(self, host: str, name: str, kind: str, fingerprint: str, *, file: Path, line: int) -> None:
        super().__init__(
            host,
            f"the key of the host {host!r} is not the known one: it shows {kind} {fingerprint}, but line {line} of "
            f"{file} has another for {name}. Somebody may be listening in, or the host was installed anew: if you are "
            f"sure of the latter, remove that line (ssh-keygen -f {file} -R '{name}').",
        )
        self.file = file
        self.line = line


class HostKeyRevokedError(SshError):
    """A file marks the host's key, or the key that has certified it, as revoked.

    Cause: A known_hosts file marks the key of the host as revoked.
    Remedy: Give the host a new key or certificate.
    """

    def __init__(self, host: str, kind: str, fingerprint: str, file: Path, line: int) -> None:
        super().__init__(
            host,
            f"the host {host!r} shows a key that line {line} of {file} marks as revoked, or that such a key has "
            f"certified ({kind} {fingerprint}): give the host a new key or certificate.",
        )
        self.line = line


def _advise_login(user: str, methods: Sequence[str], unusable: Sequence[str]) -> str:
    if methods and "publickey" not in methods:
        return "hvdrun logs in with keys only: allow publickey in its sshd_config."
    if any("encrypted" in reason for reason in unusable):
        return "hvdrun asks for no passphrase: give the key to an ssh-agent with ssh-add."
    return f"give a key with -i, or add yours to {user}'s ~/.ssh/authorized_keys there (ssh-copy-id)."
