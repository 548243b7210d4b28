"""What a job prints comes out where the program prints."""

import io
import os
import sys

import pytest

from hvdrun.cluster.job import Job, Stream
from hvdrun.errors import LaunchError
from tests.descriptors import list_descriptors, none_free


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


def test_a_job_without_a_free_descriptor_is_one_sentence_and_leaves_nothing_open() -> None:
    before = list_descriptors()
    for free in range(4):
        with none_free(but=free), pytest.raises(LaunchError, match=r"could not be started: .*Too many open files"):
            Job([], {})
        assert list_descriptors() == before
