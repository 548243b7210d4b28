"""Finds out what `hvdrun doctor` asks about this host. It imports no framework, and starts one program at most."""

import contextlib
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata, util
from itertools import pairwise
from pathlib import Path

import psutil

from hvdrun.agent.resource_limits import ResourceLimits
from hvdrun.processes.accelerators import count_accelerators
from hvdrun.processes.folder import list_orphans, remove_orphans
from hvdrun.processes.processes import (
    KillLoop,
    Process,
    descendants,
    look,
    name_outer_job,
    read_origin,
    running,
)
from hvdrun.spec.facts import Facts, Leftover
from hvdrun.spec.redaction import redact_command
from hvdrun.startup.paths import is_folder

PACKAGES = ("cloudpickle", "grpcio", "hvdrun", "mxnet", "numpy", "protobuf", "psutil", "torch")
NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel has it
_DRIVER = Path("/sys/module/nvidia/version")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_QUERY = ("nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
_QUERY_SECONDS = 10.0
_BUSY_MEBIBYTES = 1024  # a driver and a display use less
_MEBIBYTE = 1 << 20
_AGENT = b"hvdrun.agent"
_INIT = 1
_ADOPTERS = frozenset({"catatonit", "conmon", "containerd-shim", "docker-init", "dumb-init", "systemd", "tini"})
_CUDA = re.compile(r"^cuda\b[^=]*= *'([^']+)'", re.MULTILINE)
_KILL_SECONDS, _CLEAN_LOOKS, _PAUSE_SECONDS = 5.0, 3, 0.05


def examine(
    directory: str, environment: Mapping[str, str] = os.environ, *, cleans: bool = False, is_short: bool = False
) -> Facts:
    """Examine this host.

    Args:
        directory: the folder of the workers.
        environment: the environment of the agent.
        cleans: end the processes of earlier jobs, and remove what they left; the facts are those before.
        is_short: start no program, and look up no name.
    """
    name = socket.gethostname()
    left = list(find_leftovers())
    facts = Facts(
        name=name,
        knows_name=is_short or _has_address(name),
        python=".".join(map(str, sys.version_info[:3])),
        executable=sys.executable,
        packages=dict(_find_packages()),
        cuda=_find_cuda(),
        driver=_read(_DRIVER),
        accelerators=count_accelerators(environment),
        busy={} if is_short else dict(_find_busy()),
        cpus=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().available,
        shared_memory=shutil.disk_usage(_SHARED_MEMORY).total if is_folder(_SHARED_MEMORY) else None,
        free=dict(_find_free((directory, tempfile.gettempdir()))),
        files=_limit(resource.RLIMIT_NOFILE),
        processes=ResourceLimits().count_startable(),
        clock=time.time(),
        proxies=tuple(each for each in _PROXIES if environment.get(each)),
        unreadable=tuple(_find_unreadable(environment.get("PATH", ""))),
        leftovers=tuple(map(_describe, left)),
        folders=tuple(map(str, list_orphans(environment))),
    )

    if cleans:
        _end(left)
        remove_orphans(environment)
    return facts


def find_leftovers() -> Iterator[Process]:
    """The processes of this user's earlier jobs: their agents have ended, and the system has adopted them."""
    everything = {process.pid: process for process in running()}
    agents = [process for process in everything.values() if _is_agent(process)]
    below = {each.pid for agent in agents for each in descendants(agent.pid)}
    jobs = {
        pid: name_outer_job(origin) for pid, each in everything.items() if (origin := read_origin(each)) is not None
    }
    alive = {jobs[pid] for pid in below if pid in jobs}
    for pid, job in jobs.items():
        parent = everything[pid].parent
        if jobs.get(parent) != job and not _adopts(parent):
            alive.add(job)  # another program has started it
    yield from (everything[pid] for pid, job in jobs.items() if job not in alive)


def _adopts(pid: int) -> bool:
    """Whether this process is one to which the system gives processes whose parents have ended."""
    return pid == _INIT or _read(Path(f"/proc/{pid}/comm")) in _ADOPTERS


def is_agent_command(words: Sequence[bytes]) -> bool:
    """Whether these words start an agent: `-m hvdrun.agent`, or `hvdrun agent`, which joins by itself."""
    if _AGENT in words:
        return True

    return any(Path(os.fsdecode(one)).name == "hvdrun" and other == b"agent" for one, other in pairwise(words))


def _is_agent(process: Process) -> bool:
    try:
        return is_agent_command(Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0"))
    except OSError:  # it has ended meanwhile
        return False


def _describe(process: Process) -> Leftover:
    words: list[str] = []
    began = time.time()
    with contextlib.suppress(psutil.Error):  # it has ended meanwhile
        found = psutil.Process(process.pid)
        words, began = found.cmdline(), found.create_time()
    return Leftover(process.pid, " ".join(redact_command(tuple(words))), max(0.0, time.time() - began))


def _end(left: list[Process]) -> None:
    loop = KillLoop(_KILL_SECONDS, _CLEAN_LOOKS)
    while not loop.is_done:
        present = [
            process for process in left if (now := look(process.pid)) is not None and now.started == process.started
        ]
        loop.kill([process for process in present if not process.is_dead])
        time.sleep(_PAUSE_SECONDS)


def _has_address(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False


def _find_packages() -> Iterator[tuple[str, str]]:
    for name in (*PACKAGES, *NCCL_PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):  # it is not installed
            yield name, metadata.version(name)


def _find_cuda() -> str:
    """The version of CUDA for which torch is built, from its own note of it."""
    spec = util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return ""
    found = _CUDA.search(_read(Path(next(iter(spec.submodule_search_locations)), "version.py")))
    if found is None:
        return ""
    return found[1]


def _find_busy() -> Iterator[tuple[str, int]]:
    """The NVIDIA GPUs on which others have memory."""
    if shutil.which(_QUERY[0]) is None:
        return
    try:
        said = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=_QUERY_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):  # it is broken, or hangs: nothing is known of the GPUs
        return
    for line in said.splitlines():
        index, _, used = line.partition(",")
        if used.strip().isdecimal() and int(used) >= _BUSY_MEBIBYTES:
            yield index.strip(), int(used) * _MEBIBYTE


def _find_free(folders: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for folder in folders:
        with contextlib.suppress(OSError):  # the start reports a folder that is missing
            yield folder, shutil.disk_usage(folder).free


def _find_unreadable(search: str) -> Iterator[str]:
    for folder in dict.fromkeys(search.split(os.pathsep)):
        try:
            if folder:
                os.stat(folder)  # noqa: PTH116 - a Path reports nothing else
        except PermissionError:
            yield folder
        except OSError:  # a folder that is missing is no fault
            continue


def _limit(kind: int) -> int | None:
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY:
        return None
    return hard


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
