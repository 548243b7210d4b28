"""The program's own modules, which go along with a function to other hosts: those may not share the program's folder.

They are the modules that the program has imported from folders that nobody has installed, whole packages, and the
`.py` files beside the program. Installed packages are not sent: the workers' Python has its own.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

Unit = tuple[str, Mapping[str, bytes]]  # a folder, and by path in it the sources of one module or package
_ON_ALL_HOSTS = frozenset({"horovod", "hvdrun", "protos", "rendezvous", "worker_runtime"})


def collect_modules() -> tuple[Unit, ...]:
    """The sources of the program's own modules; what cannot be read is left out."""
    folders = list_own_folders(sys.path)
    found: dict[tuple[Path, str], list[Path]] = {}
    for name, module in list(sys.modules.items()):
        if "." not in name and name not in _ON_ALL_HOSTS:
            for folder, files in _list_files(module, folders):
                found[folder, name] = files
    beside = find_program_folder()
    if beside in folders:
        for file in beside.glob("*.py"):
            found.setdefault((beside, file.stem), [file])
    units = ((str(folder), _read(folder, files)) for (folder, _), files in found.items())
    return tuple((folder, sources) for folder, sources in units if sources)


def list_own_folders(search_path: Sequence[str]) -> list[Path]:
    """The folders of the search path that belong to no Python installation."""
    installed = {Path(path) for path in (*sysconfig.get_paths().values(), *site.getsitepackages())}
    installed.add(Path(site.getusersitepackages()))
    folders = (Path(os.path.abspath(path)) for path in search_path)  # noqa: PTH100 - links stay as sys.path has them
    return [
        folder
        for folder in dict.fromkeys(folders)
        if installed.isdisjoint({folder, *folder.parents}) and folder.is_dir()
    ]


def find_program_folder() -> Path:
    """Where the script lies; the current folder of a notebook or a prompt."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.abspath(script or "_")).parent  # noqa: PTH100 - the same


def _list_files(module: ModuleType, folders: Sequence[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """The sources of a module without a dot, each with the folder in which its name is looked for."""
    roots = [Path(root) for root in getattr(module, "__path__", ())]
    for root in roots:
        if root.parent in folders:
            yield root.parent, sorted(root.rglob("*.py"))
    file = getattr(module, "__file__", None)
    if not roots and file is not None and file.endswith(".py") and Path(file).parent in folders:
        yield Path(file).parent, [Path(file)]


def _read(folder: Path, files: Sequence[Path]) -> dict[str, bytes]:
    sources: dict[str, bytes] = {}
    for file in files:
        with suppress(OSError):  # a link to nowhere, or somebody else's
            sources[str(file.relative_to(folder))] = file.read_bytes()
    return sources
