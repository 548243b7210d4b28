"""Why a host was not trusted, or did not trust the user: each failure one sentence with its remedy."""

from collections.abc import Sequence
from pathlib import Path

from hvdrun.transport.ssh.failures import SshError


class AuthenticationFailedError(SshError):
    """The server let nobody in with what there was.

    methods: what the server allows. tried: the keys that it refused. unusable: keys that could not be used, with why.
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
    """No known_hosts file has a key for the host, nor one that has certified it.

    certificate: why the certificate that the host shows is not accepted; None where it shows none.
    """

    def __init__(self, host: str, name: str, kind: str, fingerprint: str, certificate: str | None = None) -> None:
        refusal = f"; its certificate is not accepted: {certificate}" if certificate else ""
        super().__init__(
            host,
            f"the key of the host {host!r} is unknown ({name}: {kind} {fingerprint}{refusal}): compare the fingerprint "
            "and log in once with ssh, or accept the keys of unknown hosts with --ssh-accept-new.",
        )
        self.name = name
        self.kind = kind
        self.fingerprint = fingerprint
        self.certificate = certificate


class HostKeyChangedError(SshError):
    """The host shows another key than the known one; refused, whatever the options."""

    def __init__(self, host: str, name: str, kind: str, fingerprint: str, *, file: Path, line: int) -> None:
        super().__init__(
            host,
            f"the key of the host {host!r} is not the known one: it shows {kind} {fingerprint}, but line {line} of "
            f"{file} has another for {name}. Somebody may be listening in, or the host was installed anew: if you are "
            f"sure of the latter, remove that line (ssh-keygen -f {file} -R '{name}').",
        )
        self.name = name
        self.kind = kind
        self.fingerprint = fingerprint
        self.file = file
        self.line = line


class HostKeyRevokedError(SshError):
    """The host shows a key, or a certificate by a key, that a file marks as revoked."""

    def __init__(self, host: str, kind: str, fingerprint: str, file: Path, line: int) -> None:
        super().__init__(
            host,
            f"the host {host!r} shows a key that line {line} of {file} marks as revoked, or that such a key has "
            f"certified ({kind} {fingerprint}): give the host a new key or certificate.",
        )
        self.kind = kind
        self.fingerprint = fingerprint
        self.file = file
        self.line = line


def _advise_login(user: str, methods: Sequence[str], unusable: Sequence[str]) -> str:
    if methods and "publickey" not in methods:
        return "hvdrun logs in with keys only: allow publickey in its sshd_config."
    if any("encrypted" in reason for reason in unusable):
        return "hvdrun asks for no passphrase: give the key to an ssh-agent with ssh-add."
    return f"give a key with -i, or add yours to {user}'s ~/.ssh/authorized_keys there (ssh-copy-id)."
