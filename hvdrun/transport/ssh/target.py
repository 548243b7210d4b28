"""The target of an ssh connection: what the command line and the ssh configuration say of a host, resolved."""

import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdrun.transport.ssh.config import DEFAULT_KEYS, DEFAULT_PORT, Settings, SshConfig, first
from hvdrun.transport.ssh.policy import SshPolicy, read_policy
from hvdrun.transport.ssh.ssh_errors import BadSshConfigError, JumpFailedError, SshPolicyError
from hvdrun.transport.ssh.tokens import expand_home, expand_path, expand_tokens, make_tokens

_MAX_JUMPS = 8  # ends the chain of a jump host that is reached through itself
_OTHER_DEFAULT_KEYS = tuple(
    f"~/.ssh/id_{kind}" for kind in ("dsa", "ecdsa_sk", "ed25519_sk", "mldsa44_ed25519", "xmss")
)
_ACCEPT_NEW = frozenset({"accept-new", "false", "no", "off"})
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
_JUMP = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Target:
    """One host, with all that a login there needs.

    host: the name that the user gave; errors use it.
    address, port, user: the address, port and user of the login. family: the family of the addresses that may be used,
    AF_UNSPEC for all.
    keys: files of private keys from the configuration or -i. default_keys: ssh's default files.
    certificates: files with certificates of these keys; if there are none, those beside the keys are used.
    identities_only: the ssh agent's other keys are not used.
    agent_socket: where the ssh agent listens; None for no agent.
    via: the jump host. proxy_command: the command that connects. At most one is given.
    known_as: the host's name in known_hosts files. principal: its name in a certificate.
    known_hosts: the known_hosts files; new keys go to the first. revoked_keys: a file of keys that are refused.
    accept_new: a host without a known key is trusted, and its key added.
    connect_timeout_seconds: ConnectTimeout; None if it is not configured.
    bind_address, bind_interface: where a direct connection starts; None for what the kernel chooses.
    policy: which algorithms and keys are allowed.
    """

    host: str
    address: str
    port: int
    user: str
    known_as: str
    principal: str
    family: socket.AddressFamily
    keys: tuple[Path, ...]
    default_keys: tuple[Path, ...]
    certificates: tuple[Path, ...]
    identities_only: bool
    agent_socket: str | None
    via: "Target | None"
    proxy_command: str | None
    known_hosts: tuple[Path, ...]
    revoked_keys: Path | None
    hash_known_hosts: bool
    accept_new: bool
    connect_timeout_seconds: float | None
    bind_address: str | None
    bind_interface: str | None
    policy: SshPolicy

    @property
    def where(self) -> tuple[str, str, int]:
        """Host, address and port, as the errors take them."""
        return self.host, self.address, self.port

    @property
    def known_names(self) -> tuple[str, ...]:
        """The host's possible names in known_hosts files: with its port, then without."""
        return tuple(dict.fromkeys((self.known_as, self.principal)))


def name_host(address: str, port: int) -> str:
    """The name under which known_hosts files have a host."""
    if port == DEFAULT_PORT:
        return address.lower()
    return f"[{address.lower()}]:{port}"


def resolve_target(
    host: str,
    *,
    config: SshConfig,
    user: str | None = None,
    port: int | None = None,
    identity_file: Path | None = None,
    accept_new: bool = False,
) -> Target:
    """The target of a host's name. The arguments replace what is configured.

    Raises:
        BadSshConfigError: the host's configuration is wrong.
        JumpFailedError: the jump hosts form a circle.
    """
    return _Resolver(config, accept_new=accept_new).resolve(host, user, port, identity_file, jumps=None, depth=0)


class _Resolver:
    """Resolves a host and its jump hosts.

    Args:
        config: the ssh configuration.
        accept_new: a host without a known key is trusted, whatever is configured.
    """

    def __init__(self, config: SshConfig, *, accept_new: bool) -> None:
        self._config = config
        self._accept_new = accept_new

    def resolve(
        self,
        host: str,
        user: str | None,
        port: int | None,
        identity_file: Path | None,
        *,
        jumps: Sequence[str] | None,
        depth: int,
    ) -> Target:
        """Resolve a host; `jumps` are the hosts before it, None for the configured ones."""
        if depth > _MAX_JUMPS:
            raise JumpFailedError(host, repr(host), f"more than {_MAX_JUMPS} jump hosts; does one lead to itself?")
        settings = self._config.lookup(host, user, port)
        try:
            return self._make(host, settings, identity_file, jumps, depth)
        except ValueError as error:
            raise BadSshConfigError(host, str(error)) from error

    def _make(
        self, host: str, settings: Settings, identity_file: Path | None, jumps: Sequence[str] | None, depth: int
    ) -> Target:
        home = self._config.home
        address, port, user = settings["hostname"][0], int(settings["port"][0]), settings["user"][0]
        alias = first(settings, "hostkeyalias")
        tokens = make_tokens(host, address=address, port=port, user=user, alias=alias, home=home)

        def expand(names: Iterable[str]) -> tuple[Path, ...]:
            return tuple(expand_path(name, tokens, home) for name in names if name.lower() != "none")

        keys = settings["identityfile"]
        has_default_keys = set(DEFAULT_KEYS) <= set(keys)  # ssh prints them where no IdentityFile is configured
        if has_default_keys:
            keys = [key for key in keys if key not in {*DEFAULT_KEYS, *_OTHER_DEFAULT_KEYS}]
        known_hosts = [*settings["userknownhostsfile"][0].split(), *settings["globalknownhostsfile"][0].split()]
        if jumps is None:
            jumps = expand_tokens(first(settings, "proxyjump") or "none", tokens).split(",")
        via = None
        if jumps[-1].lower() != "none":
            via = self._resolve_jump(host, jumps, depth)
        command = first(settings, "proxycommand") or "none"
        proxy_command = None
        if via is None and command.lower() != "none":
            if first(settings, "proxyusefdpass") == "yes":
                reason = "has a command that passes an open connection (ProxyUseFdpass), and hvdrun takes none"
                raise SshPolicyError(host, reason, "name a command that copies the bytes")
            proxy_command = expand_tokens(command, tokens)
        connect_timeout_seconds = None
        if (timeout := first(settings, "connecttimeout") or "none") != "none":
            connect_timeout_seconds = float(timeout) or None
        default_keys: tuple[Path, ...] = ()
        if has_default_keys:
            default_keys = expand(DEFAULT_KEYS)
        named_keys = expand(keys)
        if identity_file is not None:
            named_keys = (identity_file, *named_keys)

        return Target(
            host=host,
            address=address,
            port=port,
            user=user,
            known_as=alias or name_host(address, port),
            principal=alias or address,
            family=_FAMILIES.get(first(settings, "addressfamily") or "", socket.AF_UNSPEC),
            keys=named_keys,
            default_keys=default_keys,
            certificates=expand(settings.get("certificatefile", ())),
            identities_only=first(settings, "identitiesonly") == "yes",
            agent_socket=self._find_agent(settings, tokens),
            via=via,
            proxy_command=proxy_command,
            known_hosts=tuple(Path(expand_home(name, home)) for name in known_hosts if name.lower() != "none"),
            revoked_keys=next(iter(expand(settings.get("revokedhostkeys", ()))), None),
            hash_known_hosts=first(settings, "hashknownhosts") == "yes",
            accept_new=self._accept_new or first(settings, "stricthostkeychecking") in _ACCEPT_NEW,
            connect_timeout_seconds=connect_timeout_seconds,
            bind_address=first(settings, "bindaddress"),
            bind_interface=first(settings, "bindinterface"),
            policy=read_policy(host, settings),
        )

    def _resolve_jump(self, host: str, jumps: Sequence[str], depth: int) -> Target:
        match = _JUMP.fullmatch(jumps[-1])
        # A token may be an address of version 6.
        if match is None:
            raise BadSshConfigError(host, f"ProxyJump {jumps[-1]!r} does not have the form [user@]host[:port]")
        port = None
        if match["port"]:
            port = int(match["port"])
        before = list(jumps[:-1]) or None  # the first of a chain has the jump hosts of its own configuration
        return self.resolve(match["v6"] or match["name"], match["user"], port, None, jumps=before, depth=depth + 1)

    def _find_agent(self, settings: Settings, tokens: Mapping[str, str]) -> str | None:
        configured = first(settings, "identityagent") or "SSH_AUTH_SOCK"
        if configured.lower() == "none":
            return None
        if configured == "SSH_AUTH_SOCK":
            return os.environ.get("SSH_AUTH_SOCK") or None
        if configured.startswith("$") and not configured.startswith("${"):
            return os.environ.get(configured[1:]) or None
        return str(expand_path(configured, tokens, self._config.home))
