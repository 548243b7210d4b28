"""The file of --outcome: what it has after each end of a job, and that it can be written before a job starts."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hvdrun.accounts.history import History, Loss
from hvdrun.accounts.outcome_file import JobFacts, OutcomeFile, OutcomeFileError
from hvdrun.errors import LaunchError
from rendezvous.core.messages import Finish
from rendezvous.core.model import Host
from rendezvous.core.outcome import Outcome, blame_host, blame_worker, stop, succeed
from rendezvous.wire.accounts import Account, RecoveryTime, WaitedFor
from tests.hvdrun.accounts.accounts import build_history, make_worker
from tests.strangers import as_stranger

FACTS = JobFacts("5f1c", ("python", "train.py"), (Host("server1", 2),))
ACCOUNT = Account(
    make_worker(1, "server2"),
    is_measured=True,
    total_seconds=10.0,
    start_seconds=1.0,
    compute_seconds=8.0,
    steps=7,
    repeated_steps=1,
    waited_for=(WaitedFor(0, 0.5, 3),),
    recoveries=(RecoveryTime(2, 0.4, 0.3, 0.2),),
)
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def finish(_: History) -> None:
    """End a job well."""


def write(path: Path, history: History, run: Callable[[History], None] = finish) -> dict[str, Any]:
    """The object in the file after a job that ended as its history says, or raised what `run` raises."""
    try:
        with OutcomeFile(path, FACTS, history, lambda: NOW, pytest.fail) as file:
            assert not path.exists()
            run(history)
        assert not file.is_lost
    except (LaunchError, KeyboardInterrupt, ZeroDivisionError):
        pass
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert list(path.parent.iterdir()) == [path]
    return found


def end_with(history: History, outcome: Outcome, sentence: str = "", culprit: str = "") -> History:
    history.end = Finish(outcome, sentence=sentence, culprit=culprit)
    return history


def test_a_job_that_has_succeeded_has_no_first_cause(tmp_path: Path) -> None:
    found = write(tmp_path / "o", end_with(build_history(ACCOUNT), succeed()))
    assert (found["version"], found["job"], found["command"]) == (1, "5f1c", ["python", "train.py"])
    assert found["hosts"] == [{"host": "server1", "slots": 2}, {"host": "server2", "slots": 2}]
    assert (found["begin"], found["exit_code"], found["first_cause"]) == ("2026-01-31T00:00:00.000+00:00", 0, None)
    assert (found["goodput"], found["seconds_by_part"]["compute"], found["seconds_by_part"]["unknown"]) == (0.8, 8, 1)
    (worker,) = found["workers"]
    assert (worker["rank"], worker["host"], worker["slot"]) == (0, "server2", 1)
    assert (worker["steps"], worker["repeated_steps"], worker["seconds_by_part"]["start"]) == (7, 1, 1)
    assert worker["waited_for"] == [{"rank": 0, "seconds": 0.5, "steps": 3}]


def test_a_loss_has_the_four_parts_of_its_recovery(tmp_path: Path) -> None:
    history = end_with(build_history(ACCOUNT), succeed())
    lost = blame_worker(make_worker(0), 0, -37)
    history.losses += [Loss(3.0, lost, 0.1, 9.0, 2), Loss(9.5, blame_host("server2", "it was silent"), 5.0)]
    first, second = write(tmp_path / "o", history)["losses"]
    assert (first["at"], first["rank"], first["host"], first["slot"]) == (3, 0, "server1", 0)
    assert (first["signal"], first["exit_code"]) == ("SIGRTMIN+3", None)
    parts = {"detect_seconds": 0.1, "reform_seconds": 0.4, "state_seconds": 0.3, "replay_seconds": 0.2}
    assert first["recovery"] == {"generation": 2, **parts}
    assert (second["cause"], second["host"], second["recovery"]) == ("host lost", "server2", None)


def test_a_failure_has_its_first_cause(tmp_path: Path) -> None:
    end = end_with(build_history(), blame_worker(make_worker(3), 3, 7), culprit="rank 1 on b", sentence="it left")
    found = write(tmp_path / "o", end)
    cause = found["first_cause"]
    assert (found["exit_code"], cause["cause"], cause["exit_code"]) == (7, "worker failed", 7)
    assert (cause["rank"], cause["culprit"], cause["reason"]) == (3, "rank 1 on b", "it left")


def interrupt(_: History) -> None:
    raise KeyboardInterrupt


def test_an_interruption_is_one_wherever_it_comes(tmp_path: Path) -> None:
    stopped = end_with(build_history(), stop(130, "received SIGINT"))
    for history in (stopped, History()):
        found = write(tmp_path / "o", history, interrupt)
        assert (found["exit_code"], found["first_cause"]["reason"]) == (130, "received SIGINT")


def refuse(_: History) -> None:
    raise LaunchError("the host 'b' cannot be reached.")


def divide(_: History) -> None:
    raise ZeroDivisionError("division by zero")


def test_a_job_that_did_not_start_has_the_error(tmp_path: Path) -> None:
    found = write(tmp_path / "o", History(), refuse)
    assert (found["exit_code"], found["first_cause"]["cause"]) == (125, "not started")
    assert found["first_cause"]["reason"] == "the host 'b' cannot be reached."
    assert (found["workers"], found["sizes"], found["goodput"]) == ([], [], None)


def test_a_job_whose_workers_were_placed_and_never_ran_did_not_start(tmp_path: Path) -> None:
    found = write(tmp_path / "o", build_history(ACCOUNT), refuse)
    assert found["first_cause"]["cause"] == "not started"


def test_a_bug_is_reported_as_a_bug(tmp_path: Path) -> None:
    history = build_history(ACCOUNT)
    history.note_started(ACCOUNT.worker, 1.0)
    found = write(tmp_path / "o", history, divide)
    assert (found["exit_code"], found["first_cause"]["cause"]) == (125, "hvdrun failed")
    assert found["first_cause"]["reason"] == "ZeroDivisionError: division by zero"


def test_a_plain_program_has_its_times(tmp_path: Path) -> None:
    history = end_with(build_history(Account(make_worker(0), total_seconds=4.0)), succeed())
    (worker,) = write(tmp_path / "o", history)["workers"]
    assert (worker["total_seconds"], worker["seconds_by_part"]) == (4.0, None)
    unheard = end_with(build_history(ACCOUNT), succeed())
    for known in unheard.workers.values():
        known.account, known.ended = None, 2.0
    (worker,) = write(tmp_path / "o", unheard)["workers"]
    assert (worker["total_seconds"], worker["seconds_by_part"]) == (2.0, None)


def open_file(path: Path) -> OutcomeFile:
    return OutcomeFile(path, FACTS, History(), lambda: NOW, pytest.fail)


def test_the_file_of_an_earlier_job_is_removed_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "o"
    path.write_text("old")
    (tmp_path / f"o.{os.getpid()}").write_text("of a launcher that was killed")
    open_file(path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_for_no_file_is_refused_before_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OutcomeFileError, match=r"of --outcome cannot be written: it is no regular file; name"):
            open_file(path)
    with pytest.raises(OutcomeFileError, match="No such file or directory"):
        open_file(tmp_path / "missing" / "o")
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o500)
    with as_stranger(tmp_path), pytest.raises(OutcomeFileError, match="Permission denied"):
        open_file(closed / "o")


def test_a_file_that_is_lost_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with OutcomeFile(tmp_path / "o", FACTS, end_with(History(), succeed()), lambda: NOW, said.append) as file:
        (tmp_path / "o").mkdir()
    assert file.is_lost
    assert said == [f"'{tmp_path / 'o'}' of --outcome is not written: Is a directory"]
    assert [each.name for each in tmp_path.iterdir()] == ["o"]


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with OutcomeFile(None, FACTS, History(), lambda: NOW, pytest.fail):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_not_refused_to_another_server_of_a_job_that_trains(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "removed" / "outcome.json"
    with OutcomeFile(path, FACTS, build_history(), lambda: NOW, said.append, is_next=True) as file:
        pass
    assert file.is_lost
    assert said == [f"{str(path)!r} of --outcome is not written: No such file or directory"]
