"""What hvdrun does before a job, in each server of one that is detached."""

import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hvdrun.cli.run import Prepared, run_prepared
from hvdrun.console.marks import read_local_clock
from hvdrun.jobs.detach import DetachedServer
from hvdrun.jobs.folder import JobFolder
from hvdrun.jobs.guardian import Life
from hvdrun.jobs.log import LogWriter
from hvdrun.jobs.record import JobRecord
from hvdrun.spec.log_format import LogFileError
from rendezvous.core.model import Host
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.specs import build_spec


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DetachedServer]:
    """The second server of a job."""
    folder = JobFolder(tmp_path / "job")
    folder.create(JobRecord("job", ("true",)))
    folder.lock()
    writer = LogWriter(folder.path, {2: OutputStream.STDERR}, read_local_clock)
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield DetachedServer(folder, Life(2, signal.SIGKILL, theirs), writer, lambda: None)


def test_another_server_continues_without_its_log_file_and_repeats_no_remark(
    tmp_path: Path, server: DetachedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "removed" / "log"
    spec = build_spec(("true",), 2, (Host("localhost", 2),), tmp_path, log_file=path, remarks=("-mca has no effect.",))
    prepared = Prepared(spec, "job", (), has_several_hosts=False)
    with pytest.raises(LogFileError):
        run_prepared(prepared, lambda *_: 3)
    capfd.readouterr()
    assert run_prepared(prepared, lambda *_: 3, server) == 3
    lacks = "cannot be written, and lacks what hvdrun says from now on: No such file or directory"
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(f"hvdrun: {str(path)!r} of --log-file {lacks}.")
