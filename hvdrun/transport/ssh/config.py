"""The user's ssh configuration and the machine's, as one: what `ssh` itself would do for a host.

paramiko reads the format; what it does not know of it, Include and trailing comments, is dealt with here. A
section with a condition that it cannot decide (Match tagged, localnetwork, ...) does not apply.
"""

import glob
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko
from paramiko.ssh_exception import CouldNotCanonicalize

from hvdrun.transport.ssh.failures import BadSshConfigError

_SYSTEM = Path("/etc/ssh/ssh_config")
_MAX_DEPTH = 16  # of files that include files; the same as OpenSSH's
_COMMENT = re.compile(r"\s+#.*$")
_KEYWORD = re.compile(r"\s*(?P<keyword>\w+)\s*(?:=|\s)\s*(?P<value>.*?)\s*$")
_LONE_CRITERIA = frozenset({"all", "canonical", "final"})
_CRITERIA = frozenset({"host", "originalhost", "user", "localuser", "exec"})
_MATCH_SECONDS = 10.0
_NEVER = "Host !*"
_FREE_TEXT = frozenset({"proxycommand", "match", "localcommand", "remotecommand", "knownhostscommand"})


class _Sections(paramiko.SSHConfig):
    """paramiko's reader, but for `Match exec`: there it would feed hvdrun's own standard input to the command."""

    def _does_match(
        self,
        match_list: list[dict[str, Any]],
        target_hostname: str,
        canonical: bool,  # noqa: FBT001 - paramiko's signature
        final: bool,  # noqa: FBT001 - the same
        options: paramiko.SSHConfigDict,
    ) -> bool:
        commands = [criterion for criterion in match_list if criterion["type"] == "exec"]
        others = [criterion for criterion in match_list if criterion["type"] != "exec"]
        judge: Any = super()  # paramiko's stubs leave out what is private
        if not match_list or (others and not judge._does_match(others, target_hostname, canonical, final, options)):  # noqa: SLF001 - ours by inheritance
            return False
        return all(
            _succeeds(judge._tokenize(options, target_hostname, "match-exec", criterion["param"]))  # noqa: SLF001 - the same
            != criterion["negate"]
            for criterion in commands
        )


class SshConfig:
    """Answers what is configured for a host; read once, asked for many.

    home: the user's home directory. names: the hosts that have a section of their own.
    """

    def __init__(self, text: str, home: Path) -> None:
        self.home = home
        self.names = _find_names(text)
        self._text = text
        self._parsed: dict[tuple[str | None, int | None], _Sections] = {}

    @classmethod
    def read(cls, home: Path, system: Path = _SYSTEM) -> "SshConfig":
        """Read the files of the user and of the machine; what is not there says nothing."""
        user = home / ".ssh" / "config"
        lines = [*_read_lines(user, user.parent, home, 0), "Host *", *_read_lines(system, system.parent, home, 0)]
        return cls("\n".join(lines), home)

    def lookup(self, host: str, user: str | None = None, port: int | None = None) -> Mapping[str, str | list[str]]:
        """What is configured for a host: keywords in small letters -> values, a list for identityfile.

        The given user and port win over what is configured, in commands that have %r and %p too.

        Raises:
            BadSshConfigError: it cannot be understood.
        """
        try:
            found = self._parse(user, port).lookup(host)
        except (paramiko.ConfigParseError, CouldNotCanonicalize, KeyError, ValueError) as error:
            raise BadSshConfigError(host, str(error).strip() or type(error).__name__) from error
        return dict(found)

    def _parse(self, user: str | None, port: int | None) -> _Sections:
        """The configuration behind a first section: the first value that is found for a keyword counts."""
        if (user, port) not in self._parsed:
            given = ["Host *"]
            given += [f"User {user}"] if user is not None else []
            given += [f"Port {port}"] if port is not None else []
            text = "\n".join([*given, "Host *", self._text])
            self._parsed[user, port] = _Sections.from_text(text)
        return self._parsed[user, port]


def _read_lines(file: Path, folder: Path, home: Path, depth: int) -> Iterator[str]:
    """The lines of a configuration file, with those of the files that it includes in their place.

    Relative names of included files are meant from `folder`.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    section = "Host *"
    for line in text.split("\n"):
        match = _KEYWORD.match(line)
        keyword = match["keyword"].lower() if match else ""
        if match is None or keyword != "include":
            text = line if keyword in _FREE_TEXT else _COMMENT.sub("", line)
            if match is not None and keyword == "match" and not _is_decidable(match["value"]):
                text = _NEVER
            section = text if keyword in {"host", "match"} else section
            yield text
            continue
        for pattern in _COMMENT.sub("", match["value"]).replace('"', "").split():
            path = re.sub(r"^~(?=/)", str(home), pattern)
            found = sorted(glob.glob(str(folder / path))) if depth < _MAX_DEPTH else []  # noqa: PTH207 - may be absolute
            for name in found:
                yield from _read_lines(Path(name), folder, home, depth + 1)
        yield section  # what follows belongs to the section that the inclusion stands in


def _succeeds(command: str) -> bool:
    try:
        run = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_MATCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def _is_decidable(criteria: str) -> bool:
    """All criteria are known to paramiko, which takes one that it does not know as met."""
    words = shlex.split(criteria.replace("=", " "))
    names = []
    while words:
        names.append(words.pop(0).lower().removeprefix("!"))
        if names[-1] not in _LONE_CRITERIA:
            del words[:1]
    return set(names) <= _CRITERIA | _LONE_CRITERIA


def _find_names(text: str) -> frozenset[str]:
    sections = (match for line in text.split("\n") if (match := _KEYWORD.match(line)))
    names = (name for match in sections if match["keyword"].lower() == "host" for name in match["value"].split())
    return frozenset(name for name in names if not set(name) & set("*?!"))
