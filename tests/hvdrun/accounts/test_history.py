"""The history of a job: the events of the core as sizes, losses, and how the job continued after each."""

import pickle
import shlex
from dataclasses import replace

import pytest

from hvdrun.accounts.history import History, Size
from rendezvous.core import membership
from rendezvous.core.holds import holds
from rendezvous.core.messages import Dismiss, Launch, Reported
from rendezvous.core.outcome import Cause, Outcome
from rendezvous.core.state import State
from rendezvous.wire.accounts import Account, AccountsReported
from tests.rendezvous.core.commands import parse_event, parse_policy, parse_worker
from tests.rendezvous.core.transcript import expand, find_size


def run_story(policy: str, *story: str) -> History:
    """The history after these commands of a transcript; `at 3` says when the next ones come, `started a:0` is one."""
    history, state, now = History(), membership.begin(parse_policy(policy.split())), 0.0
    for command in story:
        match shlex.split(command):
            case ["at", seconds]:
                now = float(seconds)
            case ["started", *workers]:
                for worker in workers:
                    history.note_started(parse_worker(worker), now)
            case words:
                for each in expand(words, state):
                    event = parse_event(each, find_size(state))
                    state, effects = membership.step(state, event)
                    history.note(event, state, effects, now)
    return history


ELASTIC = "min=1 max=2 failures=any"


def test_a_loss_has_the_time_until_the_others_continue() -> None:
    history = run_story(
        ELASTIC,
        *(
            "tick 0",
            "hosts a:1 b:1",
            "at 1",
            "join all",
            "at 5",
            "exit b:0 -9",
            "at 7",
            "join a:0 after=1 continue state",
        ),
    )
    assert history.sizes == [Size(0.0, 2, 0), Size(1.0, 2, 0, 1), Size(7.0, 1, 0, 2)]
    (loss,) = history.losses
    assert (loss.at, loss.detect_seconds, loss.continued_at, loss.generation) == (5.0, 0.0, 7.0, 2)
    assert (loss.outcome.rank, loss.outcome.returncode) == (1, -9)


def test_the_loss_of_a_host_was_detected_from_its_last_report_on() -> None:
    history = run_story(ELASTIC, "tick 0", "hosts a:1 b:1", "join all", "at 2", "report all", "at 9", "lost b gone")
    (loss,) = history.losses
    assert (loss.at, loss.detect_seconds, loss.continued_at) == (9.0, 7.0, None)


def test_the_next_agent_of_a_host_has_not_been_heard_when_its_former_one_was() -> None:
    history, state = History(), membership.begin(parse_policy(["size=2"]))
    history.note(Reported("b", ()), state, (), 2.0)
    history.note(None, state, (Dismiss("b", 1, "it was lost", is_lost=True),), 40.0)
    history.note(None, replace(state, losses=(Outcome(75, Cause.HOST_LOST, "it was lost again", host="b"),)), (), 53.0)
    assert [loss.detect_seconds for loss in history.losses] == [0.0]


def test_two_losses_have_one_recovery() -> None:
    story = ("tick 0", "hosts a:3", "join all", "at 3", "exit a:2 1", "at 4", "exit a:1 1", "at 6")
    history = run_story("min=1 max=3 failures=any", *story, "join a:0 after=1 continue state")
    assert [(loss.at, loss.continued_at, loss.generation) for loss in history.losses] == [(3.0, 6.0, 2), (4.0, 6.0, 2)]


def test_a_restart_is_over_when_all_workers_run_again() -> None:
    story = ("tick 0", "hosts a:2", "at 3", "exit a:1 1", "at 4", "exit a:0 -15 stopped", "at 5", "started a:0#2")
    history = run_story("size=2 restarts=2", *story)
    (loss,) = history.losses
    assert (loss.at, loss.continued_at) == (3.0, None)
    assert history.sizes == [Size(0.0, 2, 0), Size(4.0, 2, 1)]
    history.note_started(parse_worker("a:1#2"), 6.0)
    assert (loss.continued_at, loss.generation) == (6.0, 0)


def test_the_ranks_of_a_former_round_are_known() -> None:
    """The next server shows output of its workers that the former one could not show before it was killed."""
    story = ("tick 0", "hosts a:2", "exit a:1 1", "exit a:0 -15 stopped", "started a:0#2 a:1#2")
    ranks = run_story("size=2 restarts=2", *story).list_ranks()
    assert ranks == {parse_worker(name): rank for rank in range(2) for name in (f"a:{rank}", f"a:{rank}#2")}


def test_a_loss_after_which_all_workers_are_started_again_is_one_also_where_the_others_tried_to_continue() -> None:
    story = ("tick 0", "hosts a:2", "join all", "at 3", "exit a:0 a:1 -9", "at 4", "started a:0#2 a:1#2")
    history = run_story("min=1 max=2 np=2 restarts=2 failures=any", *story)
    assert [(loss.outcome.rank, loss.at, loss.continued_at) for loss in history.losses] == [
        (0, 3.0, 4.0),
        (1, 3.0, 4.0),
    ]


def test_each_worker_has_its_last_rank_its_end_and_its_last_account() -> None:
    history = run_story(
        ELASTIC,
        *("tick 0", "hosts a:1 b:1", "join all", "at 5", "exit a:0 3", "at 6", "exit a:0 3"),
        *("join b:0 after=1 continue state",),
    )
    lost, kept = (history.workers[parse_worker(text)] for text in ("a:0", "b:0"))
    assert (lost.rank, lost.ended, lost.returncode) == (0, 5.0, 3)
    assert (kept.rank, kept.ended) == (0, None)
    assert (history.find_host(0), history.find_host(7)) == ("b", "")
    for seconds in (1.0, 2.0):
        assert not history.note_accounts(AccountsReported((Account(kept.worker, total_seconds=seconds),)))
    assert history.note_accounts(AccountsReported((Account(lost.worker, total_seconds=1.0),))), "no other follows"
    assert kept.account is not None
    assert kept.account.total_seconds == 2.0
    history.note_accounts(AccountsReported((Account(parse_worker("c:0")),)))
    assert parse_worker("c:0") not in history.workers


@pytest.mark.parametrize("policy", ["size=2", ELASTIC])
def test_a_launch_that_is_ordered_again_is_one_start(policy: str) -> None:
    history, state = History(), membership.begin(parse_policy(policy.split()))
    for now, command in enumerate(("tick 0", "hosts a:2", "tick 1")):
        event = parse_event(command.split())
        state, effects = membership.step(state, event)
        history.note(event, state, effects, float(now))
        launches = [effect for effect in effects if isinstance(effect, Launch)]
        history.note(event, state, tuple(launches), float(now) + 10)
    assert [worker.started for worker in history.workers.values()] == [1.0, 1.0]


def hand_over(history: History, state: State) -> tuple[History, State]:
    """The history and the state as another server of the job reads them from the journal."""
    history, state = pickle.loads(pickle.dumps(history)), pickle.loads(pickle.dumps(state))  # noqa: S301 - made here
    history.resume(state, 9.0)
    history.note(None, state, holds(state), 9.0)
    return history, state


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
def test_another_server_notes_each_loss_and_each_size_once(*, is_noted: bool) -> None:
    history, state = History(), membership.begin(parse_policy(ELASTIC.split()))
    story = ["tick 0", "hosts a:1 b:1", "join a:0", "join b:0", "exit b:0 -9", "join a:0 after=1 continue state"]
    kept = history
    for words in story:
        kept = history if is_noted else pickle.loads(pickle.dumps(history))  # noqa: S301 - made here
        event = parse_event(words.split(), find_size(state))
        state, effects = membership.step(state, event)
        history.note(event, state, effects, 1.0)
    before = [(each.workers, each.generation) for each in history.sizes], [each.outcome for each in history.losses]
    history, state = hand_over(kept, state)
    event = parse_event(["tick", "1"])
    state, effects = membership.step(state, event)
    history.note(event, state, effects, 10.0)
    after = [(each.workers, each.generation) for each in history.sizes], [each.outcome for each in history.losses]
    assert after == before
    assert [each.continued_at for each in history.losses] == [1.0 if is_noted else 9.0]


def test_the_loss_of_a_host_was_detected_from_the_begin_of_another_server_on() -> None:
    history, state = History(), membership.begin(parse_policy(ELASTIC.split()))
    for words in ("tick 0", "hosts a:1 b:1", "join a:0", "join b:0", "report b"):
        for each in expand(words.split(), state):
            event = parse_event(each, find_size(state))
            state, effects = membership.step(state, event)
            history.note(event, state, effects, 1.0)
    history, state = hand_over(history, state)
    event = parse_event(["lost", "b", "gone"])
    state, effects = membership.step(state, event)
    history.note(event, state, effects, 11.0)
    assert [each.detect_seconds for each in history.losses] == [2.0]


def test_another_server_notes_a_loss_that_the_former_one_could_not() -> None:
    history, state = History(), membership.begin(parse_policy(ELASTIC.split()))
    for words in ("tick 0", "hosts a:1 b:1", "join a:0", "join b:0"):
        event = parse_event(words.split(), find_size(state))
        state, effects = membership.step(state, event)
        history.note(event, state, effects, 1.0)
    state, _ = membership.step(state, parse_event(["exit", "b:0", "-9"]))
    history.resume(state, 9.0)
    assert [each.rank for each in history.list_untold(state)] == [1]
    history, state = hand_over(history, state)
    assert [each.outcome.rank for each in history.losses] == [1]
    history.resume(state, 9.0)
    assert history.list_untold(state) == ()


def test_a_restart_is_over_for_another_server_when_all_hosts_were_heard() -> None:
    history, state = History(), membership.begin(parse_policy(["size=2", "restarts=2"]))
    for words in ("tick 0", "hosts a:2", "report a running a:0 a:1", "exit a:1 1", "exit a:0 -15 stopped"):
        event = parse_event(words.split(), find_size(state))
        state, effects = membership.step(state, event)
        history.note(event, state, effects, 1.0)
    assert [each.continued_at for each in history.losses] == [None]
    history, _ = hand_over(history, state)
    assert [each.continued_at for each in history.losses] == [9.0]
