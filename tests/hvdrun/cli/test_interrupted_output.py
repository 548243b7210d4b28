"""Ctrl-C while `hvdrun logs -f` has much to show, and the reader of its output pauses."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

from hvdrun.jobs.folder import JobFolder
from hvdrun.jobs.log import frame, name_log
from hvdrun.jobs.record import JobRecord
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.jobs.detached import holding
from tests.waiting import LIMIT_SECONDS, wait_until

LINES = 20_000
FULL_BYTES = 60_000


def count_waiting(pipe: IO[bytes]) -> int:
    """How many bytes are in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("is_over", [False, True])
def test_ctrl_c_ends_the_output_of_much(tmp_path: Path, *, is_over: bool) -> None:
    place = tmp_path / "hvdrun"
    place.mkdir(mode=0o700)
    folder = JobFolder(place / "feed")
    folder.create(JobRecord("feed", ("sleep", "9"), is_detached=True))
    with holding(folder):
        name_log(folder.path, 1).write_bytes(frame(OutputStream.STDOUT, b"[0] a line\n" * LINES, datetime.now(tz=UTC)))
        if is_over:
            folder.end(0)
        reading = subprocess.Popen(
            [sys.executable, "-m", "hvdrun", "logs", "-f", "feed"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        )
        with reading:
            pipe = reading.stdout
            assert pipe is not None
            wait_until(lambda: count_waiting(pipe) > FULL_BYTES, "the pipe to be full")
            reading.send_signal(signal.SIGINT)
            output, errors = reading.communicate(timeout=LIMIT_SECONDS)
    assert reading.returncode == 130
    assert output.count(b"\n") < LINES
    assert errors == (b"" if is_over else b"hvdrun: the job feed goes on: hvdrun stop feed stops it\n")
