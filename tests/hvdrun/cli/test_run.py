"""What hvdrun does before a job, in each server of one that is detached."""

import json
import os
import pickle
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hvdrun.cli.run import Prepared, _make_work, resume_detached, run, run_prepared
from hvdrun.console.marks import read_local_clock
from hvdrun.errors import CommandNotFoundError, HvdrunError
from hvdrun.jobs.detach import DetachedServer
from hvdrun.jobs.errors import DetachRefusedError, ResumeRefusedError
from hvdrun.jobs.folder import JobFolder
from hvdrun.jobs.guardian import Life
from hvdrun.jobs.log import LogWriter
from hvdrun.jobs.record import JobRecord
from hvdrun.spec.log_format import LogFileError, LogFormat
from rendezvous.core.messages import Level
from rendezvous.core.model import Host
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.jobs.detached import make_folder
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


@pytest.mark.parametrize(("command", "error"), [("true", LogFileError), ("nosuchprogram", CommandNotFoundError)])
def test_a_refused_job_replaces_the_outcome_of_an_earlier_one(
    tmp_path: Path, command: str, error: type[HvdrunError]
) -> None:
    path, log = tmp_path / "outcome.json", tmp_path / "missing" / "log"
    path.write_text("old")
    hosts = (Host("localhost", 2),)
    with pytest.raises(error) as caught:
        run(build_spec((command,), 2, hosts, tmp_path, log_file=log, outcome_file=path), lambda *_: 3)
    found = json.loads(path.read_text())
    assert (found["exit_code"], found["first_cause"]["reason"]) == (caught.value.exit_code, str(caught.value))


def test_an_outcome_without_a_place_hides_no_other_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "outcome.json"
    spec = build_spec(("nosuchprogram",), 2, (Host("localhost", 2),), tmp_path, outcome_file=path)
    with pytest.raises(CommandNotFoundError):
        run(spec, lambda *_: 3)
    assert "of --outcome cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_sentence_without_a_server_has_the_form_of_the_others(tmp_path: Path) -> None:
    def note(**display: Any) -> str:
        spec = build_spec(("true",), 2, (Host("localhost", 2),), tmp_path, **display)
        work = _make_work(Prepared(spec, "job", (), has_several_hosts=False), None)
        return work.note("the job ends.", Level.WARNING).decode()

    assert note() == "hvdrun: the job ends.\n"
    assert note(marks_times=True).endswith(" hvdrun: the job ends.\n")
    record = json.loads(note(log_format=LogFormat.JSON))
    assert (record["message"], record["level"]) == ("the job ends.", "warning")
    assert note(log_level=Level.ERROR) == ""
    path = tmp_path / "log"
    assert note(log_format=LogFormat.JSON, log_file=path) == "hvdrun: the job ends.\n"
    assert json.loads(path.read_text())["message"] == "the job ends."
    assert note(log_file=tmp_path / "missing" / "log") == "hvdrun: the job ends.\n"


@pytest.mark.parametrize("has_scheduler", [False, True])
def test_the_plan_of_a_job_that_cannot_be_detached_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_scheduler: bool
) -> None:
    monkeypatch.setattr("hvdrun.jobs.detach.ends_with_container", lambda: not has_scheduler)
    if has_scheduler:
        monkeypatch.setenv("PBS_JOBID", "1")
    with pytest.raises(DetachRefusedError):
        run(build_spec(("true",), 2, (Host("localhost", 2),), tmp_path, detach=True, dry_run=True), lambda *_: 3)


def test_the_outcome_of_an_earlier_job_is_gone_before_a_detached_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "outcome.json"
    path.write_text("old")
    monkeypatch.setattr("hvdrun.jobs.detach.detach", lambda *_: 3 + path.exists())
    assert run(build_spec(("true",), 2, (Host("localhost", 2),), tmp_path, detach=True, outcome_file=path), None) == 3


@pytest.mark.parametrize("has_file", [False, True])
def test_a_refusal_before_the_start_has_the_form_of_what_hvdrun_says(
    tmp_path: Path, has_file: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log" if has_file else None
    display: dict[str, Any] = {"log_file": path, "log_format": LogFormat.JSON}
    with pytest.raises(CommandNotFoundError) as caught:
        run(build_spec(("nosuchprogram",), 2, (Host("localhost", 2),), tmp_path, **display), lambda *_: 3)
    text = capsys.readouterr().err if path is None else path.read_text()
    assert json.loads(text)["message"] == str(caught.value)
    assert caught.value.is_told is not has_file


@pytest.mark.parametrize("in_worker", [False, True])
def test_a_job_is_not_resumed_where_its_server_would_end_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_worker: bool
) -> None:
    monkeypatch.setattr("hvdrun.jobs.detach.ends_with_container", lambda: not in_worker)
    if in_worker:
        monkeypatch.setenv("HVD_JOB", "c0ffee")
    with pytest.raises(ResumeRefusedError, match="resume it from a shell"):
        resume_detached(make_folder(tmp_path, "cafe"), b"")


@pytest.mark.parametrize(("present", "expected"), [("/run/later", "/run/later"), (None, "/run/first")])
def test_resume_has_the_environment_of_the_job_and_the_ssh_agent_of_its_own_login(
    present: str | None, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "environb", found := {b"LATER": b"1"})
    if present is not None:
        found[b"SSH_AUTH_SOCK"] = present.encode()
    monkeypatch.setattr("hvdrun.jobs.detach.resume", lambda *_: 7)
    spec = build_spec(("true",), 1, (Host("localhost", 1),), tmp_path)
    prepared = Prepared(spec, "feed", (), has_several_hosts=False)
    kept = pickle.dumps((prepared, {b"FIRST": b"1", b"SSH_AUTH_SOCK": b"/run/first"}))
    assert resume_detached(JobFolder(tmp_path / "feed"), kept) == 7
    assert found == {b"FIRST": b"1", b"SSH_AUTH_SOCK": expected.encode()}
