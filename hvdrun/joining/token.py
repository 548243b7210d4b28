"""The file by which an agent knows the launcher, and the launcher its agents.

It holds the certificate of an authority, by which an agent makes sure whom it speaks with before it says anything, and
a secret, which it says then. The launcher alone has the authority's key, in a file beside it, and it alone decides when
the token has run out.
"""

import json
import os
import shlex
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from hvdrun.errors import UsageError

KEY_SUFFIX = ".key"
DEFAULT_LIFETIME_SECONDS = 24 * 3600.0
MAX_TOKEN_BYTES = 64 * 1024
_OWNER_ONLY = 0o600
_OTHERS = 0o007  # a group may read: Kubernetes gives a Secret to the group of a pod


class TokenFileError(UsageError):
    """A file cannot be used as a token, or cannot be written as one.

    Cause: The file is no token, is readable by other users, or cannot be written.
    Remedy: Make it with `hvdrun token FILE`.
    """

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        super().__init__(f"the token file {str(path)!r} {reason}: {remedy}.")
        self.path = path


@dataclass(frozen=True, slots=True)
class Token:
    """What is in the file.

    authority: the certificate, in PEM.
    expires: when the launcher accepts no more agents with it.
    """

    authority: bytes
    secret: bytes = field(repr=False)
    expires: datetime

    @classmethod
    def read(cls, path: Path) -> Self:
        """The token in a file.

        Raises:
            FileNotFoundError: there is no such file; it may still come.
            TokenFileError: it is none, may not be read, or is open to every user.
        """
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(MAX_TOKEN_BYTES))
            expires = datetime.fromisoformat(found["expires"])
            token = cls(found["authority"].encode(), bytes.fromhex(found["secret"]), expires.astimezone(UTC))
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise
        except OSError as error:
            raise TokenFileError(path, "cannot be read", error.strerror or str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TokenFileError(path, "is not a token", "make one with `hvdrun token FILE`") from error
        refuse_open(path, mode)
        return token

    def has_expired(self) -> bool:
        """The launcher accepts no more agents with it."""
        return datetime.now(UTC) >= self.expires

    def describe_expiry(self) -> str:
        """When that is, for people."""
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
    """When a token runs out that is made now."""
    return datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lifetime_seconds)


def refuse_open(path: Path, mode: int) -> None:
    """Take no secret file that is open to all users of the machine, as ssh takes no such private key.

    Raises:
        TokenFileError: it is.
    """
    if mode & _OTHERS:
        reason = f"is open to every user of this machine (mode {stat.S_IMODE(mode):04o})"
        raise TokenFileError(path, reason, f"close it with `chmod 600 {shlex.quote(str(path))}`")


def write_secret(path: Path, text: bytes) -> None:
    """Write a file that only its owner may read, at once or not at all.

    Raises:
        TokenFileError: it cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        unfinished.rename(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        remedy = f"{error.strerror or error}; give `hvdrun token` or --token-file another file name"
        raise TokenFileError(path, "cannot be written", remedy) from error
