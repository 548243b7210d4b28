"""The token file, by which an agent authenticates the launcher, and the launcher its agents.

It holds the certificate of an authority, with which an agent verifies the launcher first, and a secret, which the agent
sends then. Only the launcher has the authority's key, in a file beside the token, and only the launcher decides whether
the token has expired.
"""

import fcntl
import json
import os
import secrets
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

from hvdrun.errors import UsageError
from hvdrun.startup.paths import exists, is_file, is_folder, open_regular
from rendezvous.server.authority import Authority

KEY_SUFFIX = ".key"
DEFAULT_LIFETIME_SECONDS = 24 * 3600.0
MAX_TOKEN_BYTES = 64 * 1024
_OWNER_ONLY = 0o600
_OTHERS_PERMISSIONS = 0o007  # a group may read: Kubernetes gives a Secret to the group of a pod
_AUTHORITY_NAME = "token"
_SECRET_BYTES = 32
_JOB_NAME = "hvdrun-job-{}.token"  # the token of one job, where --token-file names none
_CREATION_SECONDS = 5.0  # for another process between the key of a token and the token
_CREATION_PAUSE_SECONDS = 0.02
_ORPHAN_SECONDS = 60.0  # the job of a younger token may be about to lock it


class TokenFileError(UsageError):
    """A file cannot be used as a token, or cannot be written as one.

    Cause: The file is no token, is readable by other users, or cannot be written.
    Remedy: Create it with `hvdrun token FILE`.
    """

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"the token file {str(path)!r} {reason}: {remedy}.")
        self.path = path


class TokenExistsError(TokenFileError):
    """A token cannot be created, because it or its key exists.

    Message: the token file PATH cannot be created, because PATH exists: remove it first.
    Cause: The file of the token, or of its key, exists.
    Remedy: Remove it, or give another name.
    """

    def __init__(self, path: Path, existing: Path) -> None:
        super().__init__(path, f"cannot be created, because {str(existing)!r} exists", "remove it first")


@dataclass(frozen=True, slots=True)
class Token:
    """The content of the file.

    authority: the certificate, in PEM.
    expires: the time until which agents may join with it.
    """

    authority: bytes
    secret: bytes = field(repr=False)
    expires: datetime

    @classmethod
    def read(cls, path: Path) -> Self:
        """The token in a file.

        Raises:
            FileNotFoundError: there is no such file yet.
            TokenFileError: it is not a token, cannot be read, or is open to every user.
        """
        try:
            with open_regular(path) as file:
                mode = os.fstat(file.fileno()).st_mode
                token = cls.decode(file.read(MAX_TOKEN_BYTES))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise TokenFileError(path, "cannot be read", error.strerror or str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TokenFileError(path, "is not a token", "create one with `hvdrun token FILE`") from error
        refuse_open(path, mode)
        return token

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """The token that `encode` has written.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is none.
        """
        found = json.loads(text)
        expires = datetime.fromisoformat(found["expires"])
        return cls(found["authority"].encode(), bytes.fromhex(found["secret"]), expires.astimezone(UTC))

    def has_expired(self) -> bool:
        """Whether the launcher refuses new agents with it."""
        return datetime.now(UTC) >= self.expires

    def describe_expiry(self) -> str:
        """When it expires, in local time."""
        return f"{self.expires.astimezone():%Y-%m-%d %H:%M %Z}"

    def encode(self) -> bytes:
        """The text of the file."""
        text = json.dumps(
            {
                "authority": self.authority.decode(),
                "secret": self.secret.hex(),
                "expires": self.expires.isoformat(timespec="seconds"),
            },
            indent=2,
        )
        return f"{text}\n".encode()


def find_expiry(lifetime_seconds: float) -> datetime:
    """When a token expires that is created now."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lifetime_seconds)


def refuse_open(path: Path, mode: int) -> None:
    """Refuse a secret file that is open to all users of the machine, as ssh refuses such a private key.

    Raises:
        TokenFileError: it is open.
    """
    if mode & _OTHERS_PERMISSIONS:
        reason = f"is open to every user of this machine (mode {stat.S_IMODE(mode):04o})"
        raise TokenFileError(path, reason, f"close it with `chmod 600 {shlex.quote(str(path))}`")


def write_secret(path: Path, text: bytes) -> None:
    """Write a file that only its owner may read, atomically.

    Raises:
        TokenFileError: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_new(unfinished, text)
        unfinished.rename(path)
    except OSError as error:
        with suppress(OSError):  # the file was not created
            unfinished.unlink()
        raise _explain_unwritable(path, error) from error


def _write_new(path: Path, text: bytes) -> None:
    """Write a file that only its owner may read, as a whole or not at all.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _explain_unwritable(path: Path, error: OSError) -> TokenFileError:
    remedy = f"{error.strerror or error}; give `hvdrun token` or --token-file another file name"
    return TokenFileError(path, "cannot be written", remedy)


@dataclass(frozen=True, slots=True)
class Keys:
    """The launcher's side of a token: the authority that issues its certificate, and the file that agents read."""

    token: Token
    authority: Authority
    path: Path

    def encode(self) -> bytes:
        """For the next launcher of the job, which may find no file."""
        found = {
            "token": self.token.encode().decode(),
            "key": self.authority.key.decode(),
            "path": os.fspath(self.path),
        }
        return json.dumps(found).encode()

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """The keys that `encode` has written."""
        found = json.loads(text)
        authority = Authority(_AUTHORITY_NAME, found["key"].encode())
        return cls(Token.decode(found["token"].encode()), authority, Path(found["path"]))


def create_files(path: Path, lifetime_seconds: float = DEFAULT_LIFETIME_SECONDS) -> Keys:
    """Write a new token, and its key beside it.

    Raises:
        TokenExistsError: one of the files exists, or another process creates them now.
        TokenFileError: they cannot be written, or the path is that of a folder.
    """
    key_path = name_key(path)
    if is_folder(path):
        raise TokenFileError(path, "is a folder", "give the name of a new file in it")
    if exists(path):
        raise TokenExistsError(path, path)
    keys = _create(path, lifetime_seconds)
    try:  # the key first: where the token is, the key is. Of several creators one has it
        _write_new(key_path, keys.authority.key)
    except FileExistsError:
        raise TokenExistsError(path, key_path) from None
    except OSError as error:
        raise _explain_unwritable(path, error) from error
    try:
        write_secret(path, keys.token.encode())
    except TokenFileError:
        key_path.unlink(missing_ok=True)
        raise
    return keys


def create_token(values: Mapping[str, Any]) -> str:
    """Run `hvdrun token` with the values of its command line; returns a sentence about the files.

    Raises:
        TokenFileError: they cannot be created.
    """
    path = Path.cwd() / values["file"]
    keys = create_files(path, values["lifetime"])
    return (
        f"{values['file']} is for hvdrun and all agents, {name_key(path).name} for hvdrun alone; agents may join until "
        f"{keys.token.describe_expiry()}."
    )


def load_files(path: Path) -> Keys:
    """The token in a file, with its key.

    Raises:
        FileNotFoundError: there is no such token.
        TokenFileError: one of the two cannot be used, or the token has expired.
    """
    token = Token.read(path)
    key_path = name_key(path)
    if token.has_expired():
        reason = f"expired at {token.describe_expiry()}"
        raise TokenFileError(path, reason, f"remove it and {key_path.name}, and a new one is created")

    try:
        with open_regular(key_path) as file:
            mode = os.fstat(file.fileno()).st_mode
            authority = Authority(_AUTHORITY_NAME, file.read(MAX_TOKEN_BYTES))
        is_pair = authority.owns(token.authority)
    except OSError as error:
        reason = f"has its key in {str(key_path)!r}, which cannot be read"
        raise TokenFileError(path, reason, error.strerror or str(error)) from error
    except ValueError as error:
        raise TokenFileError(key_path, "is not a key", "remove it and its token, and new ones are created") from error

    if not is_pair:
        reason = f"does not belong to the key in {str(key_path)!r}"
        raise TokenFileError(path, reason, "remove both, and new ones are created")
    refuse_open(key_path, mode)
    return Keys(token, authority, path)


@contextmanager
def open_keys(path: Path | None, directory: Path, name: str) -> Iterator[Keys]:
    """The keys of a job: those of its token file, which is created where it is missing, or keys for this job alone.

    Args:
        path: the value of --token-file.
        directory: where the token of this job alone is written, and removed in the end.
        name: a part of that file's name.

    Raises:
        TokenFileError: they cannot be used, or cannot be written.
    """
    if path is not None:
        yield _load_or_create(path)
        return
    _remove_orphans(directory)
    keys = _create(directory / _JOB_NAME.format(name), DEFAULT_LIFETIME_SECONDS)
    write_secret(keys.path, keys.token.encode())
    with _hold(keys.path):
        yield keys


@contextmanager
def reopen_keys(keys: Keys, path: Path | None) -> Iterator[Keys]:
    """The keys of a job whose former launcher was killed; a token of this job alone has its file again.

    path: the value of --token-file, which may be used up.
    """
    if path is None:
        with suppress(TokenFileError):  # then agents that come later need a copy
            write_secret(keys.path, keys.token.encode())
        if is_file(keys.path):
            with _hold(keys.path):
                yield keys
            return
    yield keys


@contextmanager
def _hold(path: Path) -> Iterator[None]:
    """Keep the token of one job from others, which would remove it as an orphan; remove it in the end."""
    try:
        with path.open("rb") as file:
            with suppress(OSError):  # a file system without locks: nobody can lock it as an orphan either
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield
    finally:
        path.unlink(missing_ok=True)


def _load_or_create(path: Path) -> Keys:
    """The keys of a file that other jobs may create at this moment: one creates it, the others wait for it.

    Raises:
        TokenFileError: the files cannot be used or created, or there is a key alone.
    """
    limit = time.monotonic() + _CREATION_SECONDS
    while True:
        try:
            with suppress(FileNotFoundError):  # then this job creates the file
                return load_files(path)
            return create_files(path)
        except TokenExistsError:
            if time.monotonic() >= limit:
                raise
            time.sleep(_CREATION_PAUSE_SECONDS)


def name_key(path: Path) -> Path:
    """The file of this token's key."""
    return path.with_name(f"{path.name}{KEY_SUFFIX}")


def _create(path: Path, lifetime_seconds: float) -> Keys:
    authority = Authority(_AUTHORITY_NAME)
    token = Token(authority.certificate, secrets.token_bytes(_SECRET_BYTES), find_expiry(lifetime_seconds))
    return Keys(token, authority, path)


def _remove_orphans(directory: Path) -> None:
    """Remove the tokens of jobs that were killed: no process locks them, and no key stands beside them."""
    for path in directory.glob(_JOB_NAME.format("*")):
        flags = os.O_RDONLY | os.O_NOFOLLOW
        with suppress(OSError), open_regular(path, flags) as file:  # another user's, in use, no file, or removed
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            known = os.fstat(file.fileno())
            is_old = time.time() - known.st_mtime > _ORPHAN_SECONDS
            if is_old and known.st_uid == os.getuid() and not exists(name_key(path)):
                path.unlink()
