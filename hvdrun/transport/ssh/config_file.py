"""The syntax of an ssh configuration file: statements, included files, tokens and patterns."""

import glob
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hvdrun.transport.account import name_user

_MAX_DEPTH = 16  # of files that include files; the same as OpenSSH's
_STATEMENT = re.compile(r'\s*(?:"(?P<quoted>[^"]*)"|(?P<keyword>[^\s="]+))\s*=?\s*(?P<rest>.*?)\s*$')
_ESCAPABLE = frozenset("'\"\\")


@dataclass(frozen=True, slots=True)
class Statement:
    """A keyword with its arguments.

    where: the file and the line, for an error. keyword: in lower case. rest: the arguments as they are written.
    included: for Include, the statements of each file.
    """

    where: str
    keyword: str
    rest: str
    included: tuple[tuple["Statement", ...], ...] = ()

    @property
    def words(self) -> list[str]:
        """The arguments, without quotes and a trailing comment.

        Raises:
            ValueError: a quote is not closed.
        """
        return split_words(self.rest, self.where)


def read_file(file: Path, folder: Path, home: Path, depth: int = 0) -> tuple[Statement, ...]:
    """The statements of a file; a missing file has none.

    folder: relative names of included files start here.

    Raises:
        ValueError: a line is wrong.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(_parse(text, file, folder, home, depth))


def split_words(text: str, where: str) -> list[str]:
    """Split as OpenSSH does: quotes of both kinds, backslashes before quotes, and comments that begin a word.

    Raises:
        ValueError: a quote is not closed.
    """
    words: list[str] = []
    position = 0
    while position < len(text):
        if text[position] in " \t":
            position += 1
            continue
        if text[position] == "#":
            break
        word, quote = "", ""
        while position < len(text):
            letter, following = text[position], text[position + 1 : position + 2]
            if letter == "\\" and following and (following in _ESCAPABLE or (following == " " and not quote)):
                word += following
                position += 1
            elif not quote and letter in " \t":
                break
            elif not quote and letter in "'\"":
                quote = letter
            elif letter == quote:
                quote = ""
            else:
                word += letter
            position += 1
        if quote:
            raise ValueError(f"{where}: a quote is not closed")
        words.append(word)
    return words


def _parse(text: str, file: Path, folder: Path, home: Path, depth: int) -> Iterator[Statement]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{file} line {number}"
        match = _STATEMENT.match(line)
        if match is None or not match["rest"]:
            raise ValueError(f"{where}: the keyword {line.strip()!r} has no argument")
        keyword = (match["quoted"] or match["keyword"] or "").lower()
        included: tuple[tuple[Statement, ...], ...] = ()
        if keyword == "include":
            if depth >= _MAX_DEPTH:
                raise ValueError(f"{where}: more than {_MAX_DEPTH} files include each other")
            words = split_words(match["rest"], where)
            included = tuple(
                read_file(Path(name), folder, home, depth + 1)
                for word in words
                for name in sorted(glob.glob(str(folder / expand_home(word, home))))  # noqa: PTH207 - may be absolute
            )
        yield Statement(where, keyword, match["rest"], included)


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


def fits_any(name: str, patterns: Iterable[str]) -> bool:
    """A pattern fits, and no fitting one begins with !. Brackets, as around an address with a port, are not special."""
    fitting = [pattern for pattern in patterns if fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]"))]
    return bool(fitting) and not any(pattern.startswith("!") for pattern in fitting)
