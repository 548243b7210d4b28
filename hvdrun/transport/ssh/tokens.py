"""The tokens, variables and ~ in values that `ssh -G` prints as they are configured."""

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from hvdrun.transport.user import name_user

_TOKEN = re.compile(r"%(.?)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def make_tokens(original: str, *, address: str, port: int, user: str, alias: str | None, home: Path) -> dict[str, str]:
    """The value of each token.

    original: the host's name as the user gave it. address: its HostName. alias: its HostKeyAlias.
    """
    here = socket.gethostname()
    connection = f"{here}{address}{port}{user}".encode()
    return {
        "%": "%",
        "C": hashlib.sha1(connection, usedforsecurity=False).hexdigest(),
        "L": here.partition(".")[0],
        "d": str(home),
        "h": address,
        "i": str(os.getuid()),
        "k": alias or original,
        "l": here,
        "n": original,
        "p": str(port),
        "r": user,
        "u": name_user(),
    }


def expand_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """The text with its tokens replaced.

    Raises:
        ValueError: a token is unknown.
    """

    def replace(match: re.Match[str]) -> str:
        if match[1] not in tokens:
            raise ValueError(f"the token {match[0]!r} in {text!r} is unknown")
        return tokens[match[1]]

    return _TOKEN.sub(replace, text)


def expand_path(text: str, tokens: Mapping[str, str], home: Path) -> Path:
    """The path with a leading ~, tokens and ${variables} replaced.

    Raises:
        ValueError: a token is unknown, or a variable is not set.
    """

    def replace(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ValueError(f"the environment variable {match[1]} in {text!r} is not set")
        return os.environ[match[1]]

    path = expand_home(text, home)
    return Path(_VARIABLE.sub(replace, expand_tokens(path, tokens)))


def expand_home(text: str, home: Path) -> str:
    """The text with a leading ~ or ~user replaced; ~user stays if the user is unknown."""
    if text == "~" or text.startswith("~/"):
        return f"{home}{text[1:]}"
    return os.path.expanduser(text)  # noqa: PTH111 - Path.expanduser raises for an unknown user
