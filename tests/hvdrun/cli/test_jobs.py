"""The programs that find a job by its name, on folders without a job."""

import errno
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from hvdrun.cli.program import main
from hvdrun.jobs import known, locations
from hvdrun.jobs.folder import JOURNAL, JobFolder
from hvdrun.jobs.log import frame, name_log
from hvdrun.jobs.questions import SilentJobError
from hvdrun.jobs.record import JobRecord, read_uptime
from hvdrun.options.programs import JOB_PROGRAMS
from hvdrun.version import __version__
from rendezvous.core import membership
from rendezvous.core.messages import HostsChanged
from rendezvous.core.model import Host, Policy
from rendezvous.journal.sqlite import open_journal
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.jobs.detached import holding, make_folder
from tests.rendezvous.journal.reading import close, write
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the folders are; no other job runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(known, "list_jobs", list)
    folder = tmp_path / "hvdrun"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def running(place: Path) -> Iterator[JobFolder]:
    """A job whose launcher does nothing."""
    folder = JobFolder(place / "feed")
    folder.create(JobRecord("feed", ("sleep", "9"), 3, is_detached=True, begun=time.time()))
    with holding(folder):
        yield folder


@pytest.mark.usefixtures("running")
def test_ps_lists_what_runs_and_what_has_ended(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(place, "beef", 7, begun=time.time() - 100)
    make_folder(place, "dead", begun=time.time() - 50)
    assert main(["ps"]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["JOB", "STATE", "BEGUN", "TIME", "WORKERS", "COMMAND"]
    assert [row.split()[:2] for row in rows] == [["beef", "exit"], ["dead", "lost"], ["feed", "running"]]
    assert rows[0].split()[2] == "7"
    assert rows[0].endswith("1 min 40 s  2        python train.py")


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_time_of_a_job_is_right_after_the_clock_was_set(
    place: Path, capsys: pytest.CaptureFixture[str], hours: int
) -> None:
    folder = JobFolder(place / "feed")
    folder.create(JobRecord("feed", ("sleep", "9"), begun=time.time() - 3600 * hours, uptime=read_uptime() - 125))
    with holding(folder):
        assert main(["ps"]) == 0
    folder.end(0)
    assert main(["ps"]) == 0
    _, runs, _, ended = capsys.readouterr().out.splitlines()
    assert re.search(r"attached .* 2 min \d+ s  1 ", runs)
    assert re.search(r"exit 0 .* 2 min \d+ s  1 ", ended)


def test_ps_leaves_out_what_has_ended_long_ago(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(place, "beef", 0)
    (folder.path / "end.json").write_text('{"exit_code": 0, "time": 100}')
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "jobs": []}
    assert main(["ps", "--all", "--json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["job"], job["state"], job["exit_code"], job["is_detached"]) == ("beef", "ended", 0, True)


def test_ps_names_the_machine_of_a_job_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = locations.Locations(tmp_path / "local", tmp_path / "names")
    own.create()
    (tmp_path / "names" / "beef@login2").touch()
    monkeypatch.setattr(known, "find_locations", lambda _: own)
    assert main(["ps"]) == 0
    assert "beef  on login2" in capsys.readouterr().out
    assert main(["wait", "be"]) == 69
    assert "run hvdrun wait beef there, as in ssh login2 hvdrun wait beef." in capsys.readouterr().err


def test_an_attached_job_keeps_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(known, "list_jobs", lambda: ["c0ffee", "f00d", "old"])

    def ask(name: str, *_: object) -> str:
        if name == "f00d":
            raise SilentJobError(0)
        return JobRecord(name, ("sleep", "9")).encode() if name == "c0ffee" else "{}"

    monkeypatch.setattr(known, "ask", ask)
    assert main(["ps"]) == 0
    known_rows = [
        ["f00d", "attached"],
        ["old", "attached"],
    ]  # without a time and a size
    assert [row.split() for row in capsys.readouterr().out.splitlines()[1:3]] == known_rows
    assert main(["wait", "c0"]) == 69
    assert "was started without --detach, and keeps no exit code: see its terminal" in capsys.readouterr().err
    assert main(["stop", "f00d"]) == 69
    assert "the job f00d did not answer within 1 s: look whether its hvdrun is stopped" in capsys.readouterr().err


def test_the_last_job_to_stop_is_a_detached_one(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = JobRecord("f00d", ("pytest",), begun=time.time())
    monkeypatch.setattr(known, "list_jobs", lambda: [record.job])
    monkeypatch.setattr(known, "ask", lambda *_: record.encode())
    make_folder(place, "c0ffee", 3, begun=20.0)
    assert main(["wait", "last"]) == 3
    assert main(["stop", "last"]) == 0
    assert "the job c0ffee has ended already, with exit code 3" in capsys.readouterr().err


def test_another_terminal_s_job_is_stopped_only_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = JobRecord("f00d", ("pytest",), begun=time.time())
    monkeypatch.setattr(known, "list_jobs", lambda: [record.job])
    monkeypatch.setattr(known, "ask", lambda *_: record.encode())
    assert main(["stop"]) == 2
    assert "no detached job runs: name another terminal's, as in hvdrun stop f00d." in capsys.readouterr().err


def test_a_job_without_its_folder_is_no_attached_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = JobRecord("f00d", ("sleep", "9"), is_detached=True, folder=str(tmp_path / "removed"))
    monkeypatch.setattr(known, "list_jobs", lambda: [record.job])
    monkeypatch.setattr(known, "ask", lambda *_: record.encode())
    assert main(["wait", "f00d"]) == 69
    said = capsys.readouterr().err
    assert f"the folder '{tmp_path}/removed' of the job f00d was removed or is damaged" in said
    assert "hvdrun stop f00d stops the job" in said


@pytest.mark.parametrize("code", [0, 1, 7, 130, 143])
def test_wait_ends_with_the_code_of_the_job(place: Path, code: int) -> None:
    make_folder(place, "c0ffee", code)
    assert main(["wait", "c0"]) == code


def test_the_last_job_is_the_one_that_began_last(place: Path) -> None:
    make_folder(place, "a0", 3, begun=30.0)
    make_folder(place, "b0", 4, begun=20.0)
    assert main(["wait", "last"]) == 3


def test_wait_waits_for_the_end(running: JobFolder) -> None:
    threading.Timer(0.3, running.end, (9,)).start()
    assert main(["wait"]) == 9


def test_an_end_that_is_not_known_has_a_code_of_its_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(place, "c0ffee")
    for name in ("wait", "stop"):
        assert main([name, "c0ffee"]) == 69
        said = capsys.readouterr().err
        assert said.startswith("hvdrun: the launcher of the job c0ffee was killed; it wrote last at 20")
        assert "its exit code is not known" in said


def test_a_restarted_machine_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(place, "c0ffee")
    record = JobRecord("c0ffee", ("true",), boot="another", is_detached=True)
    (folder.path / "job.json").write_text(record.encode())
    assert main(["wait", "c0ffee"]) == 69
    assert "ended with its machine, which has been started again" in capsys.readouterr().err


def test_a_job_that_is_not_known_has_the_same_code(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wait", "c0ffee"]) == 69
    assert "no job c0ffee of this user is known" in capsys.readouterr().err
    make_folder(place, "c0ffee", 1)
    make_folder(place, "c0de", 1)
    assert main(["wait", "c0"]) == 2
    assert "2 jobs begin with c0: c0" in capsys.readouterr().err
    assert main(["wait"]) == 69  # none runs


def test_ctrl_c_leaves_the_job(running: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert main(["wait", "feed"]) == 130
    assert "the job feed goes on: hvdrun stop feed stops it" in capsys.readouterr().err
    assert running.find_launcher()


@pytest.mark.parametrize("error", [None, AttributeError(), OSError(errno.ENOSYS, "")])
def test_stop_returns_when_the_launcher_has_ended(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception | None
) -> None:
    if error is not None:  # what Pythons, kernels and containers without pidfds say
        monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=error))
    folder = JobFolder(place / "feed")
    folder.create(JobRecord("feed", ("sleep", "9"), is_detached=True))
    with holding(folder):
        assert main(["stop"]) == 0
        wait_until(lambda: folder.find_launcher() is None, "the launcher to end")
    assert "stopping the job feed; hvdrun stop feed again ends it at once" in capsys.readouterr().err


def test_ctrl_c_leaves_a_job_that_stops(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = JobFolder(place / "feed")
    folder.create(JobRecord("feed", ("sleep", "9"), is_detached=True))
    with holding(folder, signal.SIG_IGN):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert main(["stop"]) == 130
    assert capsys.readouterr().err.endswith("hvdrun: the job feed still ends\n")


def test_stop_of_an_ended_job_says_its_end(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(place, "c0ffee", 3)
    assert main(["stop", "c0ffee"]) == 0
    assert "has ended already, with exit code 3" in capsys.readouterr().err


def test_a_launcher_of_another_container_is_not_signalled(
    running: JobFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(JobFolder, "find_launcher", lambda _: 0)
    assert main(["stop", running.job]) == 1
    assert "is in another container of this machine" in capsys.readouterr().err


def write_log(folder: JobFolder, *pieces: tuple[OutputStream, bytes], number: int = 1) -> None:
    with name_log(folder.path, number).open("ab") as file:
        for stream, data in pieces:
            file.write(frame(stream, data, datetime.now(tz=UTC)))


OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
STEPS = ((OUT, b"[0] a\n"), (ERR, b"[1] b\n"), (OUT, b"[0-2] c"), (OUT, b"d\n"))


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        ([], "[0] a\n[0-2] cd\n", "[1] b\n"),
        (["--follow"], "[0] a\n[0-2] cd\n", "[1] b\n"),
        (["--rank", "1"], "[0-2] cd\n", "[1] b\n"),
        (["--rank", "3", "-f"], "", ""),
    ],
)
def test_logs_prints_each_stream(
    place: Path, words: list[str], out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(make_folder(place, "c0ffee", 7), *STEPS)
    assert main(["logs", *words, "c0"]) == 0
    assert capsys.readouterr() == (out, err)


def test_logs_follows_until_the_end(running: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    def go_on() -> None:
        write_log(running, (OUT, b"second\n"))
        write_log(running, (OUT, b"third\n"), number=2)
        running.end(7)

    write_log(running, (OUT, b"first\n"))
    threading.Timer(0.3, go_on).start()
    assert main(["logs", "-f"]) == 0
    assert capsys.readouterr().out == "first\nsecond\nthird\n"


def test_logs_of_a_killed_launcher_say_it(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(make_folder(place, "c0ffee"), *STEPS)
    assert main(["logs", "-f", "c0ffee"]) == 0
    assert "hvdrun: the launcher of the job c0ffee was killed" in capsys.readouterr().err
    assert main(["attach", "c0ffee"]) == 69


def test_logs_without_marks_have_no_ranks(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(place, "c0ffee", 7)
    (folder.path / "job.json").write_text(JobRecord("c0ffee", (), is_detached=True, marks_ranks=False).encode())
    assert main(["logs", "--rank", "0", "c0"]) == 2
    assert "was started with --no-prefix, and no line tells its rank" in capsys.readouterr().err
    assert main(["logs", "--rank", "x", "c0"]) == 2


def test_logs_of_a_rank_that_the_job_never_has_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(place, "c0ffee", 7)
    for most, rank, code in ((2, "2", 2), (2, "1", 0), (None, "5", 0)):  # a silent rank is none that is missing
        record = JobRecord("c0ffee", (), 2, is_detached=True, max_size=most)
        (folder.path / "job.json").write_text(record.encode())
        assert main(["logs", "--rank", rank, "c0"]) == code
        assert ("the job c0ffee has no rank 2: its ranks are 0 to 1." in capsys.readouterr().err) == (code == 2)


def test_attach_shows_the_last_output_and_ends_as_the_job(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(place, "c0ffee", 7)
    write_log(folder, (OUT, b"first\n"), *((OUT, b"x" * 1000 + b"\n"),) * 100, (ERR, b"last\n"))
    assert main(["attach", "c0"]) == 7
    shown = capsys.readouterr()
    assert "first" not in shown.out
    assert shown.out.count("\n") > 50
    assert shown.err == "hvdrun: hvdrun logs c0ffee has the output before this\nlast\n"


def test_ctrl_c_in_attach_leaves_the_job(running: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(running, *STEPS)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert main(["attach"]) == 130
    assert "the job feed goes on: hvdrun stop feed stops it" in capsys.readouterr().err


@pytest.mark.parametrize("stream", [OUT, ERR])
def test_ctrl_c_in_attach_ends_a_progress_bar(
    running: JobFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stream: OutputStream
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    write_log(running, (stream, b"[0] 3/16\r"))
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert main(["attach"]) == 130
    ended = "\nhvdrun: the job feed goes on: hvdrun stop feed stops it\n"
    assert capsys.readouterr().err.removeprefix("[0] 3/16\r") == ended


def test_rm_removes_what_has_ended_alone(place: Path, running: JobFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder, lost = make_folder(place, "c0ffee", 7), make_folder(place, "dead")
    for name in ("c0", "dead"):
        assert main(["rm", name]) == 0
    assert not folder.path.exists()
    assert not lost.path.exists()
    assert main(["rm", "feed"]) == 1
    assert "the job feed runs: stop it first, with hvdrun stop feed" in capsys.readouterr().err
    assert running.path.exists()
    assert main(["rm"]) == 2


def test_rm_keeps_a_lost_job_whose_workers_may_run_elsewhere(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job, host in (("cafe", "h0.invalid"), ("beef", "localhost")):
        journal = open_journal(make_folder(place, job).path / JOURNAL, print)
        state, _ = membership.step(membership.begin(Policy.static(1)), HostsChanged((Host(host, 1),)))
        write(journal, state)
        close(journal)
    assert main(["rm", "cafe"]) == 1
    assert "workers of the job cafe may still run on h0.invalid: go on with them, with" in capsys.readouterr().err
    for words in (["--force", "cafe"], ["beef"]):
        assert main(["rm", *words]) == 0
    assert list(place.iterdir()) == []


def test_resume_promises_no_more_than_a_server(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(place, "cafe")
    folder.write_launch(__version__, b"kept")
    close(open_journal(folder.path / JOURNAL, print))
    monkeypatch.setattr("hvdrun.cli.run.resume_detached", lambda *_: 0)
    assert main(["resume", "cafe"]) == 0
    assert "has a server again: hvdrun logs cafe tells whether its workers go on" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(JOB_PROGRAMS))
def test_each_program_has_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Usage: hvdrun {name} [OPTIONS]" in capsys.readouterr().out
