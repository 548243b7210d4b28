"""The user's ssh configuration and the machine's: what `ssh` itself would do for a host.

The first value of a keyword counts. Files with Match final or CanonicalizeHostname are read a second time, under the
name that the first time has found. A section with an unknown condition (Match localnetwork, ...) does not apply.

paramiko.SSHConfig is not used: of the configurations in tests/hvdrun/transport/ssh/test_openssh.py it reads half in
another way than ssh. It has no Include, no comments behind arguments, no Match tagged and no check of values, its Match
exec has no limit of time, and its Match final and quotes differ.
"""

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hvdrun.transport.account import name_user
from hvdrun.transport.ssh.commands import MatchCommands
from hvdrun.transport.ssh.config_file import Statement, expand_tokens, fits_any, make_tokens, read_file
from hvdrun.transport.ssh.failures import BadSshConfigError

DEFAULT_PORT = 22
LAST_PORT = 65_535
_SYSTEM = Path("/etc/ssh/ssh_config")
_LISTS = frozenset({"identityfile", "certificatefile"})  # each line adds one
_WORDS = frozenset({"userknownhostsfile", "globalknownhostsfile", "canonicaldomains"})  # a line may have several
_SINGLE = frozenset({
    "addressfamily", "canonicalizefallbacklocal", "canonicalizehostname", "canonicalizemaxdots", "connecttimeout",
    "hashknownhosts", "hostkeyalias", "hostname", "identitiesonly", "identityagent", "port", "revokedhostkeys",
    "stricthostkeychecking", "tag", "user",
})  # fmt: skip

_CONDITIONS = frozenset({"exec", "host", "localuser", "originalhost", "tagged", "user"})

Settings = Mapping[str, tuple[str, ...]]


class SshConfig:
    """The configuration of all hosts; several threads may look hosts up.

    home: the user's home directory. names: the hosts that a Host line names without wildcards.
    commands: runs the commands of `Match exec`.
    """

    def __init__(self, files: Sequence[Sequence[Statement]], home: Path, commands: MatchCommands | None = None) -> None:
        self.home = home
        self.names = frozenset(name for file in files for name in _list_names(file))
        self._files = files
        self._commands = commands or MatchCommands()

    @classmethod
    def read(cls, home: Path, system: Path = _SYSTEM, commands: MatchCommands | None = None) -> "SshConfig":
        """Read the files of the user and of the machine; a missing file is empty.

        Raises:
            ValueError: a line is wrong.
        """
        user = home / ".ssh" / "config"
        return cls([read_file(file, file.parent, home) for file in (user, system)], home, commands)

    def lookup(self, host: str, user: str | None = None, port: int | None = None) -> Settings:
        """The configuration of a host: lower-case keyword -> arguments. It always has `hostname`.

        The given user and port replace the configured ones, also in the conditions of sections.

        Raises:
            BadSshConfigError: the configuration is wrong.
        """
        try:
            return _Lookup(self.home, self._commands, host, user, port).run(self._files)
        except ValueError as error:
            raise BadSshConfigError(host, str(error)) from error


class _Lookup:
    """The lookup of one host."""

    def __init__(self, home: Path, commands: MatchCommands, host: str, user: str | None, port: int | None) -> None:
        self._home = home
        self._commands = commands
        self._original = host
        self._name = host  # which Host lines are compared with
        self._is_final = False
        self._wants_final = False
        self._values: dict[str, tuple[str, ...]] = {}
        if user is not None:
            self._values["user"] = (user,)
        if port is not None:
            self._values["port"] = (str(port),)

    def run(self, files: Sequence[Sequence[Statement]]) -> Settings:
        for statements in files:
            self._apply(statements, is_active=True)
        self._name = self._canonicalize(self._find_address())
        self._values["hostname"] = (self._name,)
        if self._wants_final or first(self._values, "canonicalizehostname") in {"yes", "true", "always"}:
            self._is_final = True
            for statements in files:
                self._apply(statements, is_active=True)
        return self._values

    def _apply(self, statements: Iterable[Statement], *, is_active: bool) -> None:
        """Take the settings of the sections for this host; is_active: the section that includes these statements is."""
        can_match = is_active
        for statement in statements:
            match statement.keyword:
                case "host":
                    is_active = can_match and fits_any(self._name, statement.words)
                case "match":
                    is_active = can_match and self._meets(statement)
                case "include":
                    for included in statement.included:
                        self._apply(included, is_active=is_active)
                case _ if is_active:
                    self._take(statement)

    def _take(self, statement: Statement) -> None:
        keyword, values = statement.keyword, self._values
        if keyword == "proxycommand":
            if "proxyjump" not in values or values["proxyjump"] == ("none",):
                values.setdefault(keyword, (statement.rest,))
            return
        if keyword == "proxyjump":
            if "proxycommand" not in values:
                values.setdefault(keyword, (statement.rest.partition("#")[0].strip(),))
            return
        if keyword not in _LISTS | _WORDS | _SINGLE:
            return
        words = tuple(statement.words)
        if not words or "" in words:
            raise ValueError(f"{statement.where}: an argument of {keyword} is missing")
        if len(words) > 1 and keyword not in _WORDS:
            raise ValueError(f"{statement.where}: {keyword} has more than one argument")
        if keyword == "port":
            _check_port(words[0], statement.where)
        if keyword in _LISTS:
            before = values.get(keyword, ())
            values[keyword] = before if words[0] in before else before + words
        else:
            values.setdefault(keyword, words)

    def _meets(self, statement: Statement) -> bool:
        """The conditions of a Match line are met. A command runs only if the conditions before it are.

        Raises:
            ValueError: the line is wrong.
        """
        words = statement.words
        if not words:
            raise ValueError(f"{statement.where}: Match has no condition")
        is_met = True
        while words:
            name, equals, value = words.pop(0).partition("=")
            is_negated = name.startswith("!")
            name = name.removeprefix("!").lower()
            if name == "all":
                return is_met and not is_negated
            if name in {"canonical", "final"}:
                self._wants_final |= name == "final"
                is_met &= self._is_final != is_negated
                continue
            if name not in _CONDITIONS:
                return False
            argument = value if equals else "".join(words[:1])
            if not argument:
                raise ValueError(f"{statement.where}: the condition {name} has no argument")
            del words[: 0 if equals else 1]
            is_met = is_met and self._judge(name, argument) != is_negated
        return is_met

    def _judge(self, name: str, argument: str) -> bool:
        user = first(self._values, "user") or name_user()
        match name:
            case "host":
                return fits_any(self._find_address().lower(), argument.lower().split(","))
            case "originalhost":
                return fits_any(self._original.lower(), argument.lower().split(","))
            case "user":
                return fits_any(user, argument.split(","))
            case "localuser":
                return fits_any(name_user(), argument.split(","))
            case "tagged":
                return fits_any(first(self._values, "tag") or "", argument.split(","))
            case _:
                port = int(first(self._values, "port") or DEFAULT_PORT)
                alias, address = first(self._values, "hostkeyalias"), self._find_address()
                tokens = make_tokens(
                    self._original, address=address, port=port, user=user, alias=alias or address, home=self._home
                )
                return self._commands.succeeds(self._original, expand_tokens(argument, tokens))

    def _find_address(self) -> str:
        configured = first(self._values, "hostname")
        if configured is None or self._is_final:
            return configured or self._name
        return expand_tokens(configured, {"%": "%", "h": self._name})

    def _canonicalize(self, address: str) -> str:
        """The canonical name: an address in its usual form; a name with its domain, if CanonicalizeHostname wants that.

        Raises:
            ValueError: no domain has the name, and CanonicalizeFallbackLocal is no.
        """
        literal = _read_address(address)
        if literal is not None:
            return literal
        address = address.lower()
        wanted = first(self._values, "canonicalizehostname")
        is_direct = all((first(self._values, way) or "none") == "none" for way in ("proxycommand", "proxyjump"))
        if wanted not in {"yes", "true", "always"} or not (is_direct or wanted == "always"):
            return address
        if address.endswith("."):
            candidates = [address]
        elif address.count(".") > int(first(self._values, "canonicalizemaxdots") or 1):
            return address
        else:
            domains = self._values.get("canonicaldomains", ())
            candidates = [f"{address}.{domain}." for domain in domains if domain.lower() != "none"]
        for candidate in candidates:
            if _resolves(candidate):
                return candidate.removesuffix(".")
        if first(self._values, "canonicalizefallbacklocal") in {"no", "false"}:
            raise ValueError(f"no CanonicalDomains has {address!r}, and CanonicalizeFallbackLocal is no")
        return address


def first(settings: Settings, keyword: str) -> str | None:
    """The first argument of a keyword; None where it is not configured."""
    return settings[keyword][0] if keyword in settings else None


def _check_port(text: str, where: str) -> None:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= LAST_PORT):
        raise ValueError(f"{where}: Port {text!r} is not a port number")


def _read_address(text: str) -> str | None:
    """The usual form of an IP address; None if the text is a name."""
    try:
        found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    address = str(found[0][4][0])
    return text if "%" in text else str(ipaddress.ip_address(address.partition("%")[0]))


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def _list_names(statements: Iterable[Statement]) -> Iterable[str]:
    for statement in statements:
        for included in statement.included:
            yield from _list_names(included)
        if statement.keyword == "host":
            yield from (name for name in statement.words if not set(name) & set("*?!"))
