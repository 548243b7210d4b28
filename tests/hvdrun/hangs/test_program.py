"""The command line of `hvdrun stacks`, and its page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.cli.program import main
from hvdrun.hangs import program
from hvdrun.hangs.places import JobPlaces, RankPlace, find_places, render
from hvdrun.jobs import known
from hvdrun.jobs.questions import Question, SilentJobError
from hvdrun.jobs.record import JobRecord
from hvdrun.spec.stacks import Frame, Stack, WorkerStack
from rendezvous.core.model import Slot, Worker
from tests.hvdrun.jobs.detached import make_folder

MAIN = Frame("/home/a/train.py", 9, "main", "step()")
LOAD = Frame("/home/a/train.py", 3, "load", "q.get()")
WAIT = Frame("/x/site-packages/worker_runtime/engine/engine.py", 5, "wait", "wait()")
WAITING = Stack(7, (WAIT, MAIN))
PLACES = (
    RankPlace(0, "a", WAITING),
    RankPlace(1, "b", WAITING),
    RankPlace(2, "b", Stack(9, (LOAD, MAIN))),
    RankPlace(3, "b", Stack(9, obstacle="it is stopped")),
)
JOB = JobPlaces("c0ffee", 12, "python train.py", PLACES)
PAGE = """\
job c0ffee, hvdrun 12: python train.py
ranks 0-1 (a, b):
  in a call of hvdrun, which waits for other ranks
  train.py:9 in main: step()
rank 2 (b):
  train.py:3 in load: q.get()
  train.py:9 in main: step()
rank 3 (b): it is stopped
"""


def test_equal_stacks_are_shown_once() -> None:
    assert render(JOB) + "\n" == PAGE


def test_a_job_travels_unchanged() -> None:
    assert JobPlaces.decode(JOB.encode()) == JOB


def test_native_frames_are_shown_within_calls_of_hvdrun_too() -> None:
    native = Frame("/lib/libc.so.6", 0, "poll", is_native=True)
    stack = Stack(1, (native, WAIT, MAIN), remark="py-spy says more")
    assert render(JobPlaces("c0ffee", 12, "x", (RankPlace(0, "a", stack),))).splitlines()[2:] == [
        "  poll in libc.so.6",
        "  engine.py:5 in wait: wait()",
        "  train.py:9 in main: step()",
        "  (py-spy says more)",
    ]


def test_a_deep_stack_is_cut() -> None:
    deep = JobPlaces("c0ffee", 12, "x", (RankPlace(0, "a", Stack(1, (LOAD,) * 90)),))
    assert render(deep).splitlines()[-1] == "  ... and 60 more"


def test_a_stack_that_faulthandler_has_cut_is_said_to_be_longer() -> None:
    deep = JobPlaces("c0ffee", 12, "x", (RankPlace(0, "a", Stack(1, (LOAD,) * 100)),))
    assert render(deep).splitlines()[-1] == "  ... and at least 70 more"


def test_each_rank_has_a_place_or_a_reason() -> None:
    ranks = {Worker(Slot(host, slot), 1): rank for rank, (host, slot) in enumerate([("a", 0), ("a", 1), ("b", 0)])}
    answers = {"a": (WorkerStack(0, 1, WAITING), WorkerStack(1, 2, WAITING))}
    found = find_places(ranks, answers, ["a", "b"])
    assert [str(each.stack) for each in found] == [
        "train.py:9 in main: step()",
        "it starts, or has ended",
        "the agent of b did not answer in time",
    ]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[JobPlaces]:
    """The jobs that run on this machine."""
    jobs = [JOB]

    def ask(name: str, question: Question, _: float) -> str | None:
        (job,) = (job for job in jobs if job.job == name)
        if not job.command:
            raise SilentJobError(job.pid)
        if question is Question.RECORD:
            return JobRecord(job.job, tuple(job.command.split()), begun=0.0).encode()
        if question is Question.NATIVE_STACKS:
            job = replace(job, command="native")
        return job.encode() if job.pid else None

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(known, "list_jobs", lambda: [job.job for job in jobs])
    monkeypatch.setattr(known, "ask", ask)
    monkeypatch.setattr(program, "ask", ask)
    return jobs


@pytest.mark.usefixtures("jobs")
def test_the_only_job_needs_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks"]) == 3  # a rank did not answer
    assert capsys.readouterr().out == PAGE


@pytest.mark.usefixtures("jobs")
def test_native_frames_come_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", "--native"]) == 3
    assert capsys.readouterr().out.splitlines()[0] == "job c0ffee, hvdrun 12: native"


def test_all_answers_are_a_success(jobs: list[JobPlaces], capsys: pytest.CaptureFixture[str]) -> None:
    jobs[:] = [JobPlaces("beef", 1, "x"), JobPlaces("c0ffee", 12, "x", PLACES[:1])]
    assert main(["stacks", "c0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["job"], found["places"][0]["rank"]) == (1, "c0ffee", 0)
    assert found["places"][0]["stack"]["frames"][0]["line"] == 5


@pytest.mark.parametrize(
    ("running", "words", "code", "sentence"),
    [
        ([], [], 69, "no job of this user runs on this machine: hvdrun ps --all"),
        ([JOB], ["dead"], 69, "no job dead of this user is known on this machine: hvdrun ps --all"),
        (
            [JOB, JobPlaces("beef", 1, "x " * 90), JobPlaces("dead", 31, "")],
            [],
            2,
            "c0ffee (python train.py), beef (x x x x x x x x x x x x x x x x x x x x ...), dead: name one",
        ),
        ([JobPlaces("beef", 0, "x")], [], 69, "the job beef cannot be asked: it has just ended, or its next launcher"),
        (
            [JobPlaces("beef", 31, "")],
            [],
            69,
            "the job beef did not answer within 2 s: look whether its hvdrun, process 31",
        ),
        ([JOB], ["--jsn"], 2, "there is no option '--jsn': did you mean --json?"),
    ],
)
def test_a_job_that_does_not_run_is_an_error(
    jobs: list[JobPlaces],
    running: list[JobPlaces],
    words: list[str],
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs[:] = running
    assert main(["stacks", *words]) == code
    assert sentence in capsys.readouterr().err


def test_help_is_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", "--help"]) == 0
    page = capsys.readouterr().out
    assert "Usage: hvdrun stacks [OPTIONS] [JOB]" in page
    assert "the beginning of it, or `last`" in " ".join(page.split())


@pytest.mark.parametrize(
    ("exit_code", "reason"),
    [(3, "it has ended"), (None, "its launcher was killed; hvdrun resume 5f1c0e starts another one")],
    ids=["ended", "lost"],
)
def test_a_job_that_is_known_and_cannot_be_asked_is_refused_with_the_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    exit_code: int | None,
    reason: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / "hvdrun"
    place.mkdir(mode=0o700)
    make_folder(place, "5f1c0e", exit_code)
    assert main(["stacks", "5f1"]) == 69
    assert capsys.readouterr().err == f"hvdrun: the job 5f1c0e cannot be asked: {reason}.\n"
