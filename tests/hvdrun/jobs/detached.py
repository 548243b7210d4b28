"""Folders of detached jobs for tests, without a job."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hvdrun.jobs.folder import JobFolder
from hvdrun.jobs.record import JobRecord


def make_folder(place: Path, job: str, exit_code: int | None = None, begun: float = 0.0) -> JobFolder:
    """The folder of a job whose launcher has ended; exit_code: None where it was killed."""
    folder = JobFolder(place / job)
    folder.create(JobRecord(job, ("python", "train.py"), 2, begun=begun, is_detached=True, uptime=None))
    with holding(folder):
        pass
    if exit_code is not None:
        folder.end(exit_code)
    return folder


@contextmanager
def holding(folder: JobFolder, on_stop: signal.Handlers = signal.SIG_DFL) -> Iterator[int]:
    """Let another process be the launcher, which answers SIGTERM so; its pid."""
    begun, begin = os.pipe()
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGTERM, on_stop)
        folder.lock()
        os.write(begin, b"1")
        while True:
            signal.pause()
    os.close(begin)
    os.read(begun, 1)
    os.close(begun)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
