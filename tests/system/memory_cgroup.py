"""A memory cgroup with a limit, for a job that is to run out of memory; needs root."""

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_BYTES = 2 << 30
_ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def limit(limit_bytes: int = LIMIT_BYTES) -> Iterator[Path]:
    """The folder of a new cgroup; skips the test where none can be made."""
    is_first_version = (_ROOT / "memory" / "memory.oom_control").exists()
    folder = (_ROOT / "memory" if is_first_version else _ROOT) / f"hvdrun-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if is_first_version else "memory.max")).write_text(str(limit_bytes))
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip("this test needs a memory cgroup of its own, and root")
    try:
        yield folder
    finally:
        folder.rmdir()


def enter(folder: Path) -> list[str]:
    """The words that start a command in the cgroup of this folder; the command follows them."""
    return ["sh", "-c", f'{join(folder)}; exec "$@"', "sh"]


def join(folder: Path) -> str:
    """The line of a shell that moves the shell into the cgroup of this folder."""
    return f"echo $$ > {shlex.quote(str(folder / 'cgroup.procs'))}"
