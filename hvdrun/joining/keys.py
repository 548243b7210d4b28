"""The launcher's side of a token: the authority that vouches for its listener, from files or made anew."""

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdrun.joining.token import (
    DEFAULT_LIFETIME_SECONDS,
    KEY_SUFFIX,
    Token,
    TokenFileError,
    find_expiry,
    refuse_open,
    write_secret,
)
from rendezvous.server.authority import Authority

_NAME = "token"
_SECRET_BYTES = 32
_OWN_NAME = "hvdrun-job-{}.token"  # of a job that was given none
_ORPHAN_SECONDS = 60.0  # a token that is younger may be about to be locked


@dataclass(frozen=True, slots=True)
class Keys:
    """A token, the authority in it, and the file that the agents read."""

    token: Token
    authority: Authority
    path: Path


def make_files(path: Path, lifetime_seconds: float = DEFAULT_LIFETIME_SECONDS) -> Keys:
    """Write a new token, and beside it its key.

    Raises:
        TokenFileError: one is there already, or cannot be written.
    """
    key_path = name_key(path)
    for existing in (path, key_path):
        if existing.exists():
            raise TokenFileError(path, f"cannot be made, because {str(existing)!r} exists", "remove it first")
    keys = _make(path, lifetime_seconds)
    write_secret(key_path, keys.authority.key)  # first: who finds the token finds the key
    write_secret(path, keys.token.encode())
    return keys


def make_token(values: Mapping[str, Any]) -> str:
    """`hvdrun token` with the values of its command line; a sentence about the files.

    Raises:
        TokenFileError: they cannot be made.
    """
    path = Path.cwd() / values["file"]
    keys = make_files(path, values["lifetime"])
    return (
        f"{values['file']} is for hvdrun and all agents, {name_key(path).name} for hvdrun alone; agents may join until "
        f"{keys.token.describe_expiry()}."
    )


def load_files(path: Path) -> Keys:
    """The token in a file, with its key.

    Raises:
        FileNotFoundError: there is no such token.
        TokenFileError: one of the two cannot be used, or the token has run out.
    """
    token = Token.read(path)
    key_path = name_key(path)
    if token.has_expired():
        reason = f"ran out at {token.describe_expiry()}"
        raise TokenFileError(path, reason, f"remove it and {key_path.name}, and a new one is made")
    try:
        authority = Authority(_NAME, key_path.read_bytes())
        is_pair = authority.owns(token.authority)
        mode = key_path.stat().st_mode
    except OSError as error:
        reason = f"has its key in {str(key_path)!r}, which cannot be read"
        raise TokenFileError(path, reason, error.strerror or str(error)) from error
    except ValueError as error:
        raise TokenFileError(key_path, "is no key", "remove it and its token, and new ones are made") from error
    if not is_pair:
        reason = f"does not belong to the key in {str(key_path)!r}"
        raise TokenFileError(path, reason, "remove both, and new ones are made")
    refuse_open(key_path, mode)
    return Keys(token, authority, path)


@contextmanager
def open_keys(path: Path | None, directory: Path, name: str) -> Iterator[Keys]:
    """The keys of a job: those of its token file, made where there is none; else some that end with the job.

    Args:
        path: what --token-file gave.
        directory: where the file is put that ends with the job.
        name: of that file.

    Raises:
        TokenFileError: they cannot be used, or cannot be written.
    """
    if path is not None:
        yield load_files(path) if path.exists() else make_files(path)
        return
    _remove_orphans(directory)
    keys = _make(directory / _OWN_NAME.format(name), DEFAULT_LIFETIME_SECONDS)
    write_secret(keys.path, keys.token.encode())
    try:
        with keys.path.open("rb") as file:
            with suppress(OSError):  # a file system without locks; then nobody takes it for an orphan either
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield keys
    finally:
        keys.path.unlink(missing_ok=True)


def name_key(path: Path) -> Path:
    """Where the key of this token is."""
    return path.with_name(f"{path.name}{KEY_SUFFIX}")


def _make(path: Path, lifetime_seconds: float) -> Keys:
    authority = Authority(_NAME)
    token = Token(authority.certificate, secrets.token_bytes(_SECRET_BYTES), find_expiry(lifetime_seconds))
    return Keys(token, authority, path)


def _remove_orphans(directory: Path) -> None:
    """Remove the tokens of jobs that were killed: nobody holds a lock on them, and they have no key beside them."""
    for path in directory.glob(_OWN_NAME.format("*")):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            known = os.fstat(file.fileno())
            is_old = time.time() - known.st_mtime > _ORPHAN_SECONDS
            if is_old and known.st_uid == os.getuid() and not name_key(path).exists():
                path.unlink()
