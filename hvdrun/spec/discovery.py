"""Where hosts come from: the list after -H, a hostfile, or, without either, this machine."""

from pathlib import Path

from hvdrun.errors import HostFileError, UsageError
from hvdrun.spec.hosts import HostList, parse_hostfile, parse_hosts
from rendezvous.core.model import Host

LOCALHOST = "localhost"
MAX_HOSTFILE_BYTES = 16 * 1024 * 1024  # a hostfile of a hundred thousand hosts is a few megabytes; /dev/zero has no end


def discover_hosts(*, listed: str | None, hostfile: Path | None, size: int) -> HostList:
    """Say which hosts a job of `size` workers may use.

    Args:
        listed: what -H gave.
        hostfile: what --hostfile gave.
        size: how many slots localhost has when neither was given.

    Raises:
        UsageError: both were given.
        HostSyntaxError: the list is malformed.
        HostFileError: the hostfile is unreadable or malformed.
    """
    if listed is not None and hostfile is not None:
        raise UsageError("-H and --hostfile both say which hosts to use: give only one of them.")
    if listed is not None:
        return parse_hosts(listed)
    if hostfile is not None:
        return read_hostfile(hostfile)
    return HostList((Host(LOCALHOST, size),), {})


def read_hostfile(path: Path) -> HostList:
    """Read the hosts that a file names; it may also be a pipe, as in `--hostfile <(command)`.

    Raises:
        HostFileError: the file is unreadable, too long, not text, or malformed.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_HOSTFILE_BYTES + 1)
    except OSError as error:
        raise HostFileError(str(path), None, error.strerror or str(error)) from error
    except ValueError as error:  # a NUL in the path
        raise HostFileError(str(path), None, str(error)) from error
    if len(data) > MAX_HOSTFILE_BYTES:
        raise HostFileError(str(path), None, f"it is longer than {MAX_HOSTFILE_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise HostFileError(str(path), line, f"byte {data[error.start]:#04x} is not UTF-8 text") from error
    return parse_hostfile(text, str(path))
