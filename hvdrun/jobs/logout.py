"""What a logout ends: a user's processes, where logind is set so; and the SSH agent."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hvdrun.spec.jobspec import JobSpec
from hvdrun.startup.paths import exists
from hvdrun.transport.account import find_home, name_user

_FOLDERS = ("etc", "run", "usr/local/lib", "usr/lib", "lib")  # of the settings, the first ones override the others
_SESSION = re.compile(r"/session-[^/]+\.scope")
_MANAGER = re.compile(r"/user@\d+\.service")
_SETTING = re.compile(r"\s*(KillUserProcesses|KillOnlyUsers|KillExcludeUsers)\s*=\s*(.*?)\s*")
_TRUE = frozenset({"1", "yes", "y", "true", "t", "on"})
_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa", "id_ecdsa_sk", "id_ed25519_sk")
_NAMES_KEY = re.compile(r"^\s*identityfile\b", re.IGNORECASE | re.MULTILINE)
_REMEDY = "loginctl enable-linger; systemd-run --user --scope hvdrun --detach ..."


def find_kill(root: Path = Path("/"), user: str | None = None) -> str | None:
    """That a logout would kill a detached job of this user, and the remedy, in one sentence; None where it would not.

    root: where the files of the system are looked for.
    """
    user = user or name_user()
    place = _read(root / "proc/self/cgroup")
    lingers = exists(root / "var/lib/systemd/linger" / user)
    if _MANAGER.search(place):
        if lingers:
            return None
        return (
            "systemd ends the services of this user at the last logout, and this job with them, as lingering is off: "
            "loginctl enable-linger."
        )
    if not _SESSION.search(place):
        return None
    settings: dict[str, str] = {}
    source = Path()
    for path in _list_files(root):
        for line in _read(path).splitlines():
            if match := _SETTING.fullmatch(line):
                settings[match[1]] = match[2]
                source = path
    if not _kills(settings, user):
        return None
    return f"logind kills the processes of this user at logout ({source}), this job with them: start it with {_REMEDY}"


def _kills(settings: Mapping[str, str], user: str) -> bool:
    """As logind decides it."""
    if user in settings.get("KillExcludeUsers", "root").split():
        return False
    if only := settings.get("KillOnlyUsers", "").split():
        return user in only
    return settings.get("KillUserProcesses", "no").lower() in _TRUE


def _list_files(root: Path) -> Iterator[Path]:
    """The files with logind's settings, the later ones override the earlier ones."""
    folders = [root / folder / "systemd" for folder in _FOLDERS]
    yield from [path for folder in folders if exists(path := folder / "logind.conf")][:1]
    parts: dict[str, Path] = {}
    for folder in reversed(folders):
        with suppress(OSError):  # there are none
            parts |= {path.name: path for path in (folder / "logind.conf.d").iterdir() if path.suffix == ".conf"}
    yield from (parts[name] for name in sorted(parts))


def find_fleeting_keys(spec: JobSpec, environment: Mapping[str, str], home: Path | None = None) -> str | None:
    """That keys for hosts come from the SSH agent alone, in one sentence; None where none is needed later.

    A job that loses no host, and gets none, has made all its connections when it has started.

    home: of the user.
    """
    remote = spec.remote
    asks_later = spec.is_elastic and remote.joining is None and not remote.rsh and (remote.hosts or spec.discovers)
    if not asks_later or remote.ssh_identity_file is not None or "SSH_AUTH_SOCK" not in environment:
        return None
    folder = (home or find_home()) / ".ssh"
    if any(exists(folder / name) for name in _KEYS) or _NAMES_KEY.search(_read(folder / "config")):
        return None
    return (
        "the keys for the hosts come from the SSH agent alone, which may end with your login: then hosts that come "
        "later cannot be reached; name the file of a key with -i."
    )


def _read(path: Path) -> str:
    with suppress(OSError):  # it cannot be read
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
