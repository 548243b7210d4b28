"""`python -m hvdrun.shim`: lets `import horovod` and `horovodrun` reach this project in one environment.

Workers of hvdrun need no installation. Here a .pth file in this Python's site-packages adds the folder of the shim at
the end of the search path, so that a Horovod that is installed later comes first; `--force` puts the folder in front.
The installation also writes the program `horovodrun`. It is not in the wheel, because pip would overwrite Horovod's.
"""

import argparse
import os
import shlex
import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hvdrun.shim.path import FOLDER

NAME = "hvdrun-horovod.pth"
COMMAND = "horovodrun"
_KEPT = ".put-aside"  # the end of another horovodrun's name, while hvdrun's has its place
_START = "#!/bin/sh\n# Made by python -m hvdrun.shim --install.\n"
_EXECUTABLE = 0o755


class ShimError(Exception):
    """An action failed; one sentence."""


def main(arguments: list[str] | None = None) -> int:
    """Run the action and return the exit code: 0, 1 for an action that failed, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        prog="python -m hvdrun.shim", description="`import horovod` outside of hvdrun: in this Python's environment."
    )
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--install", action="store_true", help="let `import horovod` mean hvdrun's own")
    actions.add_argument("--uninstall", action="store_true", help="undo that")
    actions.add_argument("--path", action="store_true", help="print the folder that holds it, for a PYTHONPATH")
    parser.add_argument("--force", action="store_true", help="with --install: in front of an installed Horovod")
    asked = parser.parse_args(arguments)
    if asked.force and not asked.install:
        parser.error("--force belongs to --install")

    site, scripts = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("scripts"))
    try:
        if asked.path:
            report = str(FOLDER)
        elif asked.install:
            report = install(site, scripts, force=asked.force)
        else:
            report = uninstall(site, scripts)
    except ShimError as error:
        sys.stderr.write(f"{error}\n")
        return 1

    sys.stdout.write(f"{report}\n")
    return 0


def install(site: Path, scripts: Path, *, force: bool) -> str:
    """Write the .pth file into a site-packages folder and `horovodrun` into the folder of programs; return a report.

    Raises:
        ShimError: a Horovod is installed, or the file cannot be written.
    """
    if not force and (where := find_installed()) is not None:
        raise ShimError(
            f"Horovod itself is installed ({where}), and `import horovod` means that: uninstall it, or put hvdrun's in "
            "front with --force. Under hvdrun, --horovod-shim on does it for one job."
        )

    install_command(scripts, force=force)
    path = site / NAME
    line = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n" if force else f"{FOLDER}\n"
    if path.is_file() and path.read_text(encoding="utf-8") == line:
        return f"`import horovod` means hvdrun's already: {path} was there; {scripts / COMMAND} was written."

    try:
        path.write_text(line, encoding="utf-8")
    except OSError as error:
        raise ShimError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from error
    return (
        f"From now on `import horovod` and {COMMAND} mean hvdrun's in {sys.prefix}: {path} and {scripts / COMMAND} "
        "were written; --uninstall removes them."
    )


def uninstall(site: Path, scripts: Path) -> str:
    """Remove the .pth file and the program; return a report.

    Raises:
        ShimError: one of them cannot be removed.
    """
    had_command = uninstall_command(scripts)
    path = site / NAME
    try:
        path.unlink()
    except FileNotFoundError:
        if had_command:
            return f"{COMMAND} is no longer hvdrun's; there was no {path}."
        return f"Nothing to do: there is no {path}."
    except OSError as error:
        raise ShimError(f"{path} cannot be removed: {os.strerror(error.errno or 0)}") from error
    return f"`import horovod` no longer imports hvdrun's: {path} was removed, and its {COMMAND}."


def install_command(scripts: Path, *, force: bool) -> None:
    """Write `horovodrun` into the folder of an environment's programs.

    Raises:
        ShimError: another program has this name, or it cannot be written.
    """
    path, kept = scripts / COMMAND, scripts / f"{COMMAND}{_KEPT}"
    try:
        if path.exists() and not _is_own(path):
            if not force:
                raise ShimError(f"{path} is somebody else's: remove it, or put it aside with --force.")
            path.replace(kept)
        path.write_text(f'{_START}exec {shlex.quote(sys.executable)} -P -m hvdrun horovodrun "$@"\n', encoding="utf-8")
        path.chmod(_EXECUTABLE)
    except OSError as error:
        raise ShimError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from error


def uninstall_command(scripts: Path) -> bool:
    """Remove hvdrun's `horovodrun`, and restore the one that --force renamed; return whether hvdrun's was there.

    Raises:
        ShimError: it cannot be removed.
    """
    path, kept = scripts / COMMAND, scripts / f"{COMMAND}{_KEPT}"
    try:
        if not path.exists() or not _is_own(path):
            return False
        path.unlink()
        if kept.exists():
            kept.replace(path)
    except OSError as error:
        raise ShimError(f"{path} cannot be removed: {os.strerror(error.errno or 0)}") from error
    return True


def _is_own(path: Path) -> bool:
    """The file was written by `install_command`."""
    return path.read_bytes().startswith(_START.encode())


def find_installed() -> str | None:
    """The file or the version of the installed Horovod; None if there is none."""
    spec = PathFinder.find_spec("horovod", [entry for entry in sys.path if Path(entry) != FOLDER])
    if spec is not None and spec.origin is not None:
        return spec.origin
    try:
        # An editable installation.
        return f"version {version('horovod')}"
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
