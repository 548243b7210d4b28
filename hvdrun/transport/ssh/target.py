"""Where an ssh connection goes, and with what: the command line and the ssh configuration, resolved."""

import getpass
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdrun.transport.ssh.config import SshConfig
from hvdrun.transport.ssh.failures import BadSshConfigError, JumpFailedError
from hvdrun.transport.ssh.known_hosts import name_host

_DEFAULT_PORT = 22
_LAST_PORT = 65_535
_MAX_JUMPS = 8  # a jump host that is reached through itself would never end
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
_JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d+))?/?")

Settings = Mapping[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Target:
    """One host, and all that is needed to log in there.

    host: what the user calls it; errors do too.
    address, port, user: where to go, and as whom.
    keys: files with private keys that were asked for. default_keys: those that are tried unasked.
    identities_only: the ssh agent's other keys are not to be used.
    agent_socket: where the ssh agent listens; None for no agent.
    via: the jump host, if one leads there. proxy_command: the command, if one leads there.
    known_as: the host's name in known_hosts files. known_hosts: those files; the first one is added to.
    accept_new: a host without a known key is trusted, and added.
    connect_timeout_seconds: what the configuration allows for a connection; None where it says nothing.
    configured_names: hosts that the configuration speaks of; the user may have meant one of them.
    """

    host: str
    address: str
    port: int
    user: str
    known_as: str
    keys: tuple[Path, ...] = ()
    default_keys: tuple[Path, ...] = ()
    identities_only: bool = False
    agent_socket: str | None = None
    via: "Target | None" = None
    proxy_command: str | None = None
    known_hosts: tuple[Path, ...] = ()
    hash_known_hosts: bool = False
    accept_new: bool = False
    connect_timeout_seconds: float | None = None
    configured_names: frozenset[str] = field(default=frozenset(), repr=False)


def resolve_target(
    host: str,
    *,
    config: SshConfig,
    user: str | None = None,
    port: int | None = None,
    identity_file: Path | None = None,
    accept_new: bool = False,
) -> Target:
    """Where the user's name for a host leads; what is given here wins over what is configured.

    Raises:
        BadSshConfigError: what is configured for the host cannot be understood.
        JumpFailedError: the jump hosts lead in a circle.
    """
    return _Resolver(config, accept_new=accept_new).resolve(host, user, port, identity_file, jumps=None, depth=0)


class _Resolver:
    """Resolves a host and the jump hosts before it."""

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
        """Resolve a host; `jumps` are the hosts that lead there, None for those that are configured."""
        if depth > _MAX_JUMPS:
            raise JumpFailedError(host, repr(host), f"more than {_MAX_JUMPS} jump hosts; does one lead to itself?")
        settings = self._config.lookup(host, user, port)
        address = _text(settings, "hostname") or host
        number = _number(host, settings, "port", _DEFAULT_PORT)
        if jumps is None:
            jumps = [jump.strip() for jump in (_text(settings, "proxyjump") or "none").split(",")]
        via = None if not jumps or jumps[-1].lower() == "none" else self._resolve_jump(host, jumps, depth)
        folder = self._config.home / ".ssh"
        keys = [self._expand(name) for name in settings.get("identityfile", ()) if name.lower() != "none"]
        checking = (_text(settings, "stricthostkeychecking") or "").lower()
        alias = _text(settings, "hostkeyalias")
        return Target(
            host=host,
            address=address,
            port=number,
            user=_text(settings, "user") or getpass.getuser(),
            known_as=alias.lower() if alias else name_host(address, number),
            keys=((identity_file,) if identity_file is not None else ()) + tuple(keys),
            default_keys=() if "identityfile" in settings else tuple(folder / name for name in _DEFAULT_KEYS),
            identities_only=(_text(settings, "identitiesonly") or "no").lower() == "yes",
            agent_socket=self._find_agent(settings),
            via=via,
            proxy_command=None if via is not None else _text(settings, "proxycommand"),
            known_hosts=self._find_known_hosts(settings),
            hash_known_hosts=(_text(settings, "hashknownhosts") or "no").lower() == "yes",
            accept_new=self._accept_new or checking in {"accept-new", "no", "off"},
            connect_timeout_seconds=_number(host, settings, "connecttimeout", 0) or None,
            configured_names=self._config.names,
        )

    def _resolve_jump(self, host: str, jumps: Sequence[str], depth: int) -> Target:
        match = _JUMP.fullmatch(jumps[-1])
        if match is None or int(match["port"] or 1) not in range(1, _LAST_PORT + 1):
            raise BadSshConfigError(host, f"ProxyJump {jumps[-1]!r} is no [user@]host[:port]")
        port = int(match["port"]) if match["port"] else None
        before = list(jumps[:-1]) or None  # the first of a chain is reached as is configured for it
        return self.resolve(match["v6"] or match["name"], match["user"], port, None, jumps=before, depth=depth + 1)

    def _find_known_hosts(self, settings: Settings) -> tuple[Path, ...]:
        own = f"{self._config.home}/.ssh/known_hosts {self._config.home}/.ssh/known_hosts2"
        names = shlex.split(_text(settings, "userknownhostsfile") or own)
        names += shlex.split(_text(settings, "globalknownhostsfile") or _SYSTEM_KNOWN_HOSTS)
        return tuple(self._expand(name) for name in names if name.lower() != "none")

    def _find_agent(self, settings: Settings) -> str | None:
        configured = _text(settings, "identityagent") or "SSH_AUTH_SOCK"
        if configured.lower() == "none":
            return None
        if configured == "SSH_AUTH_SOCK":
            return os.environ.get("SSH_AUTH_SOCK") or None
        if configured.startswith("$"):
            return os.environ.get(configured[1:].strip("{}")) or None
        return str(self._expand(configured))

    def _expand(self, name: str) -> Path:
        home = str(self._config.home)
        return Path(re.sub(r"^~(?=/|$)", lambda _: home, name.replace("%d", home)))


def _text(settings: Settings, keyword: str) -> str | None:
    value = settings.get(keyword)
    return value if isinstance(value, str) else None


def _number(host: str, settings: Settings, keyword: str, default: int) -> int:
    text = _text(settings, keyword)
    if text is None or text.lower() == "none":
        return default
    if not (text.isascii() and text.isdecimal() and int(text) <= _LAST_PORT):
        raise BadSshConfigError(host, f"{keyword} {text!r} is no number")
    return int(text)
