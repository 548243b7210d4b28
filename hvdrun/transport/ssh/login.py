"""Logs in with keys: those of the configuration or -i, the ssh agent's, and ssh's default ones.

There is no login with a password, for which hundreds of hosts would have to ask.
"""

import copy
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from hvdrun.startup.paths import exists
from hvdrun.transport.ssh.certificates import SUFFIX, BadCertificateError, read_subject
from hvdrun.transport.ssh.ssh_errors import AuthenticationFailedError
from hvdrun.transport.ssh.target import Target
from hvdrun.transport.ssh.tcp import DroppedError

_HELD = " (from the ssh agent)"
_NO_SIGNATURE_BYTES = 64
_AGENT_SECONDS = 10.0  # an ssh agent may ask its user to confirm a key


class SshAgent(AgentSSH):
    """The ssh agent at the socket that the configuration names; paramiko.Agent supports only SSH_AUTH_SOCK.

    Args:
        path: of the socket.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_AGENT_SECONDS)
        try:
            self._socket.connect(path)
            self._connect(self._socket)  # type: ignore[attr-defined]  # the stubs lack it
        except BaseException:
            self._socket.close()
            raise

    def shut_down(self) -> None:
        """Ask no more, since a late answer would be taken for that to another question."""
        with suppress(OSError):  # the agent has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class HeldKey(AgentKey):
    """A key that the ssh agent holds, and may refuse to use, as where its user does not confirm that.

    refusal: why it has signed nothing; "" where it has. paramiko would end the connection, without another key.
    """

    refusal = ""

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> paramiko.Message:
        """See paramiko; where the agent refuses, a signature that no server accepts."""
        try:
            return super().sign_ssh_data(data, algorithm)
        except (paramiko.SSHException, OSError, EOFError) as error:
            self.refusal = f"the ssh agent did not sign: {_describe(error)}"
            if isinstance(self.agent, SshAgent) and not isinstance(error, paramiko.SSHException):
                self.agent.shut_down()
        signature = paramiko.Message()
        signature.add_string((algorithm or self.get_name()).removesuffix(SUFFIX))
        signature.add_string(bytes(_NO_SIGNATURE_BYTES))
        return signature


class AgentCertificate(HeldKey):
    """A certificate that the ssh agent holds; paramiko.AgentKey would offer the plain key instead."""

    def asbytes(self) -> bytes:
        """See paramiko."""
        return self.blob


class Login:
    """One attempt to log in over one connection.

    Args:
        client: the connection, with a verified host key.
        target: the host, and how to log in there.
    """

    def __init__(self, client: paramiko.Transport, target: Target) -> None:
        self._client = client
        self._target = target
        self._methods: list[str] = []
        self._tried: list[str] = []
        self._unusable: list[str] = []
        self._offered: set[bytes] = set()

    def run(self) -> bool:
        """Log in; returns whether the ssh agent alone has the key.

        Raises:
            DroppedError: the connection ended before the server asked for a key.
            AuthenticationFailedError: the server accepted no key.
            SshPolicyError: no key may be offered.
        """
        if self._needs_no_key():
            return False
        self._target.policy.check_login()
        if self._methods and "publickey" not in self._methods:
            raise self._fail()
        agent = self._open_agent()
        if agent is None:
            self._try_all(self._list_keys(()))
            return False
        with closing(agent):
            held = [
                (AgentCertificate if key.get_name().endswith(SUFFIX) else HeldKey)(agent, key.blob, key.comment)
                for key in agent.get_keys()
            ]
            return self._is_held_alone(self._try_all(self._list_keys(held)))

    def _needs_no_key(self) -> bool:
        """The server asks for no key; if it does, note the methods that it allows."""
        try:
            remaining = self._client.auth_none(self._target.user)
        except paramiko.BadAuthenticationType as error:
            self._methods = list(error.allowed_types)
            return False
        except (paramiko.SSHException, OSError, EOFError) as error:
            if self._has_ended(error):
                raise DroppedError("it closed the connection before it asked for a key") from error
            raise self._fail(_describe(error)) from error
        self._methods = list(remaining)
        return not remaining

    def _try_all(self, keys: Iterator[tuple[str, paramiko.PKey]]) -> paramiko.PKey:
        for name, key in keys:
            offer = _find_offer(key)
            if offer in self._offered:
                continue
            self._offered.add(offer)
            if (refusal := self._target.policy.find_refusal(key)) is not None:
                self._unusable.append(f"{name} ({refusal})")
                continue

            try:
                remaining = self._client.auth_publickey(self._target.user, key)
            except paramiko.BadAuthenticationType as error:
                self._methods = list(error.allowed_types)
                raise self._fail() from error
            except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
                if isinstance(key, HeldKey) and key.refusal:
                    self._unusable.append(f"{name.removesuffix(_HELD)} ({key.refusal})")
                else:
                    self._tried.append(name)
                if self._has_ended(error):
                    raise self._fail(
                        "then the server ended the connection; give only the right key, with -i"
                    ) from error
                continue

            self._tried.append(name)
            if not remaining:
                return key
            self._methods = list(remaining)
            raise self._fail("a key alone is not enough")
        raise self._fail()

    def _has_ended(self, error: Exception) -> bool:
        """Whether the connection has ended; paramiko's reader may notice that later than a write that fails."""
        return isinstance(error, OSError | EOFError) or not self._client.is_active()

    def _is_held_alone(self, key: paramiko.PKey) -> bool:
        """The ssh agent has the key, and no file does that can be read without a passphrase."""
        if not isinstance(key, AgentKey):
            return False
        plain = key.blob
        if key.get_name().endswith(SUFFIX):
            plain = read_subject(key.get_name(), key.blob)
        files = (*self._target.keys, *self._target.default_keys)
        loaded = (self._load(path) for path in files if exists(path))
        return not any(each is not None and each.asbytes() == plain for each in loaded)

    def _list_keys(self, held: Sequence[AgentKey]) -> Iterator[tuple[str, paramiko.PKey]]:
        """All keys, the likeliest first: a server ends the connection after a few wrong ones."""
        target = self._target
        by_blob = {_find_offer(key): key for key in held}
        for path in target.certificates:
            yield from self._certify(path, (*target.keys, *target.default_keys), by_blob)
        for path in target.keys:
            yield from self._list_key(path, by_blob)
        if not target.identities_only:
            for key in held:
                yield f"{key.comment or key.get_name()}{_HELD}", key
        for path in target.default_keys:
            if exists(path) or exists(path.with_name(f"{path.name}.pub")):
                yield from self._list_key(path, by_blob)

    def _list_key(self, path: Path, held: Mapping[bytes, AgentKey]) -> Iterator[tuple[str, paramiko.PKey]]:
        """A key, and the certificate beside its file, unless CertificateFile names others."""
        public = _read_public(path)
        if public is not None and public.key_blob in held:
            yield f"{path}{_HELD}", held[public.key_blob]
        elif (key := self._load(path)) is not None:
            yield str(path), key
        beside = path.with_name(f"{path.name}-cert.pub")
        if not self._target.certificates and exists(beside):
            yield from self._certify(beside, (path,), held)

    def _certify(
        self, file: Path, keys: Iterable[Path], held: Mapping[bytes, AgentKey]
    ) -> Iterator[tuple[str, paramiko.PKey]]:
        """A certificate with its key, which the ssh agent or one of these files has."""
        certificate = _read_blob(file)
        if certificate is None or not certificate.key_type.endswith(SUFFIX):
            self._unusable.append(f"{file} (not a certificate that can be read)")
            return
        if certificate.key_blob in held:
            yield f"{file}{_HELD}", held[certificate.key_blob]
            return

        try:
            plain = read_subject(certificate.key_type, certificate.key_blob)
        except BadCertificateError as error:
            self._unusable.append(f"{file} ({error})")
            return
        if plain in held:
            yield f"{file}{_HELD}", _join(held[plain], certificate)
            return

        for path in keys:
            public = _read_public(path)
            if (public is None or public.key_blob == plain) and exists(path):
                key = self._load(path)
                if key is not None and key.asbytes() == plain:
                    yield str(file), _join(key, certificate)
                    return

    def _load(self, path: Path) -> paramiko.PKey | None:
        try:
            key = _read_private(path)
        except FileNotFoundError:
            self._unusable.append(f"{path} (does not exist)")
        except OSError as error:
            self._unusable.append(f"{path} ({error.strerror})")
        except (paramiko.PasswordRequiredException, TypeError):  # cryptography raises the latter
            self._unusable.append(f"{path} (encrypted)")
        except Exception:  # noqa: BLE001 - the libraries raise many classes for a file that is no key
            self._unusable.append(f"{path} (not a private key that can be read)")
        else:
            return key
        return None

    def _open_agent(self) -> SshAgent | None:
        if self._target.agent_socket is None:
            return None
        try:
            return SshAgent(self._target.agent_socket)
        except (OSError, paramiko.SSHException) as error:
            self._unusable.append(f"the ssh agent at {self._target.agent_socket} ({_describe(error)})")
            return None

    def _fail(self, reason: str | None = None) -> AuthenticationFailedError:
        target = self._target
        return AuthenticationFailedError(
            target.host,
            target.user,
            methods=self._methods,
            tried=self._tried,
            unusable=self._unusable,
            reason=reason,
        )


def _read_private(path: Path) -> paramiko.PKey:
    """A private key. PKey.from_path would also read the certificate beside it, and fail if that is wrong."""
    failure: Exception | None = None
    for kind in (paramiko.Ed25519Key, paramiko.ECDSAKey, paramiko.RSAKey):
        try:
            return kind.from_private_key_file(str(path))
        except paramiko.PasswordRequiredException:
            raise
        except paramiko.SSHException as error:
            failure = error
    raise paramiko.SSHException(f"an unknown kind of key: {failure}")


def _read_public(path: Path) -> PublicBlob | None:
    """The public key, from the .pub file, or from the file itself if only the agent has the private key."""
    return _read_blob(path.with_name(f"{path.name}.pub")) or _read_blob(path)


def _read_blob(file: Path) -> PublicBlob | None:
    try:
        return PublicBlob.from_file(str(file))
    except (OSError, ValueError):
        return None


def _join(key: paramiko.PKey, certificate: PublicBlob) -> paramiko.PKey:
    """A copy of the key with this certificate."""
    joined: paramiko.PKey
    if isinstance(key, AgentKey):
        joined = HeldKey(key.agent, key.blob, key.comment)
    else:
        joined = copy.copy(key)
    joined.public_blob = certificate
    return joined


def _find_offer(key: paramiko.PKey) -> bytes:
    """What the server gets of a key: the certificate, or the public key."""
    if key.public_blob is None:
        return key.asbytes()
    return key.public_blob.key_blob


def _describe(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error).strip().rstrip(".") or type(error).__name__
