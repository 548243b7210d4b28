"""What a logout ends: a user's processes, where logind is set so."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hvdrun.startup.paths import exists
from hvdrun.transport.user import name_user

_FOLDERS = ("etc", "run", "usr/local/lib", "usr/lib", "lib")  # of the settings, the first ones override the others
_SESSION = re.compile(r"/session-[^/]+\.scope")
_MANAGER = re.compile(r"/user@\d+\.service")
_SETTING = re.compile(r"\s*(KillUserProcesses|KillOnlyUsers|KillExcludeUsers)\s*=\s*(.*?)\s*")
_TRUE = frozenset({"1", "yes", "y", "true", "t", "on"})
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


def _read(path: Path) -> str:
    with suppress(OSError):  # it cannot be read
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
