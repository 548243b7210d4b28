"""When a job has started."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from hvdrun.jobs.start import StartWatch, expects_init
from rendezvous.core.holds import restore
from rendezvous.core.model import Slot, Worker
from tests.rendezvous.core.transcript import play
from tests.waiting import in_loop

A, B = Worker(Slot("a", 0), 1), Worker(Slot("a", 1), 1)


def make_state(*, joined: bool = False, waiting: int = 0, outcome: object = None) -> Mock:
    return Mock(
        workers={A.slot: A, B.slot: B}, generation=object() if joined else None, waiting=waiting, outcome=outcome
    )


def test_a_plain_program_has_started_when_all_processes_run() -> None:
    note = Mock()
    watch = StartWatch(note)
    watch.note_running(A)
    watch.look(make_state())
    note.assert_not_called()
    watch.note_running(B)
    watch.look(make_state())
    note.assert_called_once_with()


@pytest.mark.parametrize("expects_init", [True, False])
def test_a_program_that_joins_has_started_when_all_have_joined(expects_init: bool) -> None:
    note = Mock()
    started = StartWatch(note, expects_init=expects_init, patience_seconds=9.0, clock=lambda: 0.0)
    for worker in (A, B):
        started.note_running(worker)
    started.look(make_state(waiting=1))
    note.assert_not_called()
    started.look(make_state(joined=True))
    note.assert_called_once_with()


def test_a_program_that_only_might_join_has_started_after_a_while() -> None:
    note, clock = Mock(), Mock(return_value=5.0)
    watch = StartWatch(note, expects_init=True, patience_seconds=9.0, clock=clock)
    for worker in (A, B):
        watch.note_running(worker)
    watch.look(make_state())
    clock.return_value = 13.9
    watch.look(make_state())
    note.assert_not_called()
    clock.return_value = 14.0
    watch.look(make_state(waiting=1))
    note.assert_not_called()
    watch.look(make_state())
    note.assert_called_once_with()


def test_a_job_that_fails_has_not_started() -> None:
    note = Mock()
    StartWatch(note).look(make_state(joined=True, outcome=object()))
    note.assert_not_called()


def test_a_watch_may_have_no_waiting_process() -> None:
    watch = StartWatch()
    watch.look(make_state(joined=True))
    assert not watch.is_awaited


@pytest.mark.parametrize("lines", [("join all",), ("report all",)], ids=["joined", "reported"])
def test_a_resumed_job_has_started(lines: tuple[str, ...]) -> None:
    note = Mock()
    StartWatch(note).resume(restore(play("policy size=2", "hosts a:1 b:1", *lines)))
    note.assert_called_once_with()


@pytest.mark.parametrize(("ago", "patience"), [(2.0, 7.0), (20.0, 0.0)], ids=["early", "late"])
def test_the_next_server_waits_for_the_start_as_long_as_the_former_one_would_have(ago: float, patience: float) -> None:
    note, clock = Mock(), Mock(return_value=5.0)
    watch = StartWatch(note, expects_init=True, patience_seconds=9.0, clock=clock)
    state = restore(play("policy size=2", "hosts a:1 b:1", "report all", "join a:0"))
    watch.resume(state, ago)
    watch.look(state)
    note.assert_not_called()  # one has joined, and the others will
    state = restore(play("policy size=2", "hosts a:1 b:1", "report all"))
    clock.return_value += patience
    watch.look(state)
    note.assert_called_once_with()


def test_the_next_server_of_a_job_whose_workers_have_joined_does_not_wait() -> None:
    note = Mock()
    watch = StartWatch(note, expects_init=True, patience_seconds=9.0)
    watch.resume(restore(play("policy size=2", "hosts a:1 b:1", "join all")), 2.0)
    note.assert_called_once_with()


def test_a_resumed_job_that_misses_a_worker_has_started_when_that_runs() -> None:
    note = Mock()
    watch = StartWatch(note)
    state = restore(play("policy size=2", "hosts a:1 b:1", "report a"))
    watch.resume(state)
    watch.look(state)
    note.assert_not_called()
    watch.note_running(state.workers[Slot("b", 0)].worker)
    watch.look(state)
    note.assert_called_once_with()


@in_loop
async def test_a_watch_looks_until_the_job_has_started() -> None:
    note = Mock()
    states = iter([make_state(), make_state(joined=True)])
    await StartWatch(note).run(lambda: next(states))
    note.assert_called_once_with()


@pytest.mark.parametrize(
    ("source", "command", "expected"),
    [
        ("import worker_runtime.torch as hvd", ("python", "train.py"), True),
        ("import horovod.torch as hvd", ("/opt/bin/python3", "train.py", "--lr", "1"), True),
        ("import torch", ("python", "train.py"), False),
        ("import horovod.torch", ("python", "-m", "train"), True),
        ("import horovod.torch", ("python", "none.py"), False),
        ("import horovod.torch", ("sh", "train.py"), False),
        ("import horovod.torch", ("python3", "-u", "-X", "dev", "train.py"), True),
        ("import horovod.torch", ("python", "-um"), False),
        ("import horovod.torch", ("python",), False),
        ("import horovod.torch", ("python", "-B", "-m", "train"), True),
        ("", ("python", "-u", "-c", "import hvdrun.torch as hvd; hvd.init()"), True),
        ("import horovod.torch", ("python", "-c", "print()", "train.py"), False),
        ("import horovod.torch", ("python", "-c"), False),
    ],
)
def test_the_source_shows_whether_a_program_joins(
    source: str, command: tuple[str, ...], expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(source)
    assert expects_init(command, tmp_path) is expected
