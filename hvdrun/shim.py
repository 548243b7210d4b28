"""`python -m hvdrun.shim`: lets `import horovod` reach this project outside of hvdrun as well, in one environment.

Under hvdrun nothing needs to be installed. Here a .pth file in this Python's site-packages names the folder of the
shim, behind everything else there, so that a Horovod which is installed later comes first; `--force` puts it in front.
"""

import argparse
import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hvdrun.horovod_path import FOLDER

NAME = "hvdrun-horovod.pth"


class ShimError(Exception):
    """What was asked for cannot be done; one sentence."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the words ask for and return the exit code: 0, 1 where it cannot be done, 2 for wrong words."""
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
    site = Path(sysconfig.get_path("purelib"))
    try:
        told = str(FOLDER) if asked.path else install(site, force=asked.force) if asked.install else uninstall(site)
    except ShimError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{told}\n")
    return 0


def install(site: Path, *, force: bool) -> str:
    """Write the .pth file into a site-packages folder; what was done, in a sentence.

    Raises:
        ShimError: a Horovod is installed, or the file cannot be written.
    """
    if not force and (where := find_installed()) is not None:
        raise ShimError(
            f"Horovod itself is installed ({where}), and `import horovod` means that: uninstall it, or put hvdrun's in "
            "front with --force. Under hvdrun, --horovod-shim on does it for one job."
        )
    path = site / NAME
    line = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n" if force else f"{FOLDER}\n"
    if path.is_file() and path.read_text(encoding="utf-8") == line:
        return f"`import horovod` means hvdrun's already: {path} was there."
    try:
        path.write_text(line, encoding="utf-8")
    except OSError as error:
        raise ShimError(f"{path} cannot be written: {os.strerror(error.errno or 0)}") from error
    return f"From now on `import horovod` means hvdrun's in {sys.prefix}: {path} was written; --uninstall removes it."


def uninstall(site: Path) -> str:
    """Remove the .pth file; what was done, in a sentence.

    Raises:
        ShimError: it cannot be removed.
    """
    path = site / NAME
    try:
        path.unlink()
    except FileNotFoundError:
        return f"Nothing to do: there is no {path}."
    except OSError as error:
        raise ShimError(f"{path} cannot be removed: {os.strerror(error.errno or 0)}") from error
    return f"`import horovod` does not mean hvdrun's any more: {path} was removed."


def find_installed() -> str | None:
    """Where or what the Horovod of this environment is; None when there is none but the shim."""
    spec = PathFinder.find_spec("horovod", [entry for entry in sys.path if Path(entry) != FOLDER])
    if spec is not None and spec.origin is not None:
        return spec.origin
    try:
        return f"version {version('horovod')}"  # one that is found in a way of its own, as when it is being worked on
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
