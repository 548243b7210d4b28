"""What a job prints comes out where the program prints."""

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hvdrun.cluster import launcher_child
from hvdrun.cluster.launcher_child import LauncherChild, Stream, is_watched
from hvdrun.errors import LaunchError
from hvdrun.processes.background import in_thread
from tests.descriptors import list_descriptors, list_settled_descriptors, none_free
from tests.waiting import LIMIT_SECONDS, in_loop


def test_where_a_program_prints_somewhere_else_it_reads_what_the_job_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    stream = Stream("stdout")
    assert stream.reader is not None
    os.write(stream.writer, "ä".encode()[:1])
    stream.pump()
    os.write(stream.writer, "ä".encode()[1:] + b"b\n")
    stream.pump()
    assert shown.getvalue() == "äb\n"
    stream.close_writer()
    stream.pump()
    assert stream.reader is None


def test_the_process_own_stream_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(2, "w", closefd=False, encoding="utf-8") as own:
        monkeypatch.setattr(sys, "stderr", own)
        monkeypatch.setattr(sys, "__stderr__", own)
        stream = Stream("stderr")
    assert (stream.reader, stream.writer) == (None, 2)
    stream.close_writer()
    os.fstat(2)


def test_a_program_without_a_stream_or_with_a_closed_one_loses_only_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    for target in (None, io.StringIO()):
        if target is not None:
            target.close()
        monkeypatch.setattr(sys, "stdout", target)
        stream = Stream("stdout")
        os.write(stream.writer, b"x")
        stream.close_writer()
        stream.pump()
        assert stream.reader is None


class Terminal(io.StringIO):
    """A stream on a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.mark.parametrize(
    ("errors", "shell", "expected"),
    [(Terminal(), None, True), (io.StringIO(), object(), True), (io.StringIO(), None, False), (None, None, False)],
    ids=["a terminal", "a notebook", "a file", "nothing"],
)
def test_a_terminal_and_a_notebook_count_as_watched(
    monkeypatch: pytest.MonkeyPatch, errors: io.StringIO | None, shell: object, *, expected: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", errors)
    assert is_watched() == (errors is not None and errors.isatty())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert is_watched() is expected


@pytest.fixture
def sleeping_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LauncherChild]:
    """A launcher that does nothing."""
    launcher = tmp_path / "launcher"
    launcher.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(launcher))
    for limit in ("_END_SECONDS", "_EXIT_SECONDS"):
        monkeypatch.setattr(launcher_child, limit, 0.1)
    job = LauncherChild([], os.environ)
    yield job
    subprocess.Popen.kill(job._process)
    job._process.wait()


@in_loop
async def test_a_launcher_that_does_not_end_its_job_is_killed(sleeping_launcher: LauncherChild) -> None:
    await asyncio.wait_for(in_thread(sleeping_launcher.close), LIMIT_SECONDS)
    assert sleeping_launcher._process.returncode == -signal.SIGKILL


@in_loop
async def test_a_launcher_that_the_kernel_does_not_end_is_left(
    sleeping_launcher: LauncherChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeping_launcher._process, "kill", lambda: None)  # as if it waited for a broken disk
    await asyncio.wait_for(in_thread(sleeping_launcher.close), LIMIT_SECONDS)
    assert sleeping_launcher.is_over


def test_a_job_without_a_free_descriptor_is_one_sentence_and_leaves_nothing_open() -> None:
    before = list_settled_descriptors()
    for free in range(4):
        with none_free(but=free), pytest.raises(LaunchError, match=r"could not be started: .*Too many open files"):
            LauncherChild([], {})
        assert list_descriptors() == before
