"""Evidence of a job that hangs: what its workers do, and all that it has written.

A worker that offers its stacks writes those of all its threads when SIGQUIT asks for them, also while it stands in a
call that holds the GIL. Where py-spy is installed it shows the frames of C and C++ too. What has no answer within a
limit is left out: evidence must not hold up the tests that follow.
"""

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HAS_FAILED = pytest.StashKey[bool]()  # of a test: its own part, without its fixtures
_STACKS = "{}.stacks"  # by pid
_ANSWER_SECONDS = 1.0
_PROGRAM_SECONDS = 8.0  # for py-spy, which reads the symbols of torch, and for nvidia-smi
_PAUSE_SECONDS = 0.01
_THREAD_FILES = ("comm", "stat", "wchan")  # the name of a thread, its state, and where in the kernel it waits


def offer_stacks(folder: Path) -> None:
    """Have this process write the stacks of its threads into a file of this folder whenever it gets SIGQUIT."""
    file = (folder / _STACKS.format(os.getpid())).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGQUIT, file=file, all_threads=True)


def keep_evidence(pids: Sequence[int], folder: Path, outputs: Mapping[str, str], into: Path) -> None:
    """Copy what a job has written, with the stacks of its workers and what the kernel says of them.

    Args:
        pids: of the workers, which have called `offer_stacks`; those that have ended are left out.
        folder: what the job has written.
        outputs: texts by the names of their files.
        into: where the evidence goes.
    """
    into.mkdir(parents=True, exist_ok=True)
    for name, text in outputs.items():
        (into / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    living = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    for pid in living:
        with contextlib.suppress(OSError):  # it has just ended
            (into / f"{pid}.kernel").write_text(_describe_threads(pid), encoding="utf-8")
            _ask(pid, folder / _STACKS.format(pid))
    shutil.copytree(folder, into / folder.name, dirs_exist_ok=True)
    programs: dict[Path, Sequence[str]] = {
        into / f"{pid}.py-spy": ("py-spy", "dump", "--native", "--pid", str(pid)) for pid in living
    }
    programs[into / "nvidia-smi.txt"] = ("nvidia-smi",)
    with ThreadPoolExecutor(len(programs)) as pool:
        for _ in pool.map(_note_output, programs, programs.values()):
            pass


def _describe_threads(pid: int) -> str:
    """The number of its open files, and a line for each thread."""
    process = Path(f"/proc/{pid}")
    tasks = sorted((process / "task").iterdir())
    lines = [" ".join((task / name).read_text().strip() for name in _THREAD_FILES) for task in tasks]
    return "\n".join([f"{len(list((process / 'fd').iterdir()))} open files", *lines])


def _ask(pid: int, answer: Path) -> None:
    """Ask a worker for its stacks, and wait until they have come; one that SIGSTOP has stopped gives none."""
    os.kill(pid, signal.SIGQUIT)
    deadline, before = time.monotonic() + _ANSWER_SECONDS, 0
    while time.monotonic() < deadline and not 0 < (size := answer.stat().st_size) == before:
        before = size
        time.sleep(_PAUSE_SECONDS)


def _note_output(path: Path, words: Sequence[str]) -> None:
    """Keep what a program prints, where it is installed."""
    found = shutil.which(words[0], path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        return
    with path.open("wb") as file, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([found, *words[1:]], stdout=file, stderr=file, check=False, timeout=_PROGRAM_SECONDS)
