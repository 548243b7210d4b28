"""What a person reads at the end of a job; the core decides it."""

from dataclasses import replace

import pytest

from rendezvous.core.explanation import explain_end
from rendezvous.core.messages import Explanation
from rendezvous.core.outcome import (
    Cause,
    Outcome,
    blame_host,
    blame_worker,
    fail_again,
    fail_to_report,
    lose_state,
    stop,
    succeed,
)
from tests.rendezvous.core.commands import parse_worker
from tests.rendezvous.core.transcript import Player, play

ONE, TWO = parse_worker("a:0"), parse_worker("b:0")
ELASTIC = play("policy min=1 max=2 failures=any", "hosts a:1 b:1", "join all")
STATIC = play("policy size=2", "hosts a:1 b:1", "join all")

# Causes of a loss: a worker that did not report in time, a killed worker, a lost host, a worker that failed.
GIVEN_UP = fail_to_report(TWO, 1, 60)
KILLED, GONE, FAILED = blame_worker(TWO, 1, -9), blame_host("b", "gone."), blame_worker(ONE, 0, 3)
TOO_FEW = Outcome(75, Cause.TOO_FEW_WORKERS, "only 1 of at least 2 workers were there")
MAY_CONTINUE = "Exit code 75: the job may continue when you start it again."


@pytest.mark.parametrize(
    ("losses", "outcome", "notes"),
    [
        ((GONE,), TOO_FEW, ("Lost before: host b was lost: gone.", MAY_CONTINUE)),
        ((GIVEN_UP,), TOO_FEW, (f"Lost before: {GIVEN_UP.reason}.", MAY_CONTINUE)),
        ((KILLED, FAILED), lose_state("no worker is left", FAILED), (f"Lost before: {KILLED.reason}.",)),
        ((), fail_again("the shapes differ; the same has happened 3 times in a row", None), ()),
        ((KILLED, GONE), blame_host("b", "gone"), (f"Lost before: {KILLED.reason}.", MAY_CONTINUE)),
    ],
    ids=["too few", "given up", "state lost", "fails again", "host lost"],
)
def test_the_page_of_a_job_that_cannot_continue_names_what_was_lost_once(
    losses: tuple[Outcome, ...], outcome: Outcome, notes: tuple[str, ...]
) -> None:
    end = explain_end(replace(ELASTIC, losses=losses), outcome)
    assert (end.explanation, end.sentence, end.notes) == (Explanation.RECOVERY_PAGE, outcome.reason, notes)


NOT_STARTED = blame_worker(TWO, 1, 127, "the command 'train' was not found.", cannot_start=True)


@pytest.mark.parametrize(
    ("outcome", "explanation", "sentence"),
    [
        (blame_host("b", "gone."), Explanation.SENTENCE, "host b was lost: gone"),
        (NOT_STARTED, Explanation.SENTENCE, "on the host 'b', the command 'train' was not found"),
        (stop(143, "received SIGTERM"), Explanation.SENTENCE, "received SIGTERM"),
        (stop(130, "received SIGINT"), Explanation.NONE, ""),
        (succeed(), Explanation.NONE, ""),
        (FAILED, Explanation.WORKER_PAGE, ""),
        (GIVEN_UP, Explanation.WORKER_PAGE, GIVEN_UP.reason),
    ],
    ids=["host lost", "not started on one of several", "stopped", "interrupted", "ended well", "failed", "late"],
)
def test_of_a_static_job_only_a_failed_worker_has_a_page(
    outcome: Outcome, explanation: Explanation, sentence: str
) -> None:
    end = explain_end(STATIC, outcome)
    assert (end.explanation, end.sentence, end.notes) == (explanation, sentence, ())


def test_a_command_that_does_not_start_on_the_only_host_names_no_host() -> None:
    state = play("policy size=1", "hosts b:1")
    assert explain_end(state, NOT_STARTED).sentence == "the command 'train' was not found"


def test_the_last_losses_are_kept() -> None:
    losses = [f"lost h{number} gone" for number in range(7)]
    state = play("policy min=1 max=9 failures=any", "tick 1", "hosts " + " ".join(f"h{n}:1" for n in range(9)), *losses)
    assert [loss.host for loss in state.losses] == ["h2", "h3", "h4", "h5", "h6"]


def test_members_that_ran_when_the_outcome_was_decided_were_stopped() -> None:
    """`stopped` has their ranks."""
    newcomer = ("policy min=1 max=2 failures=any", "hosts a:1", "join all", "declare a:0", "hosts a:1 b:1")
    assert play("policy size=2", "hosts a:2", "exit a:0 1").stopped == (1,)
    assert play(*newcomer, "stop 143 SIGTERM").stopped == (0,)
    assert play("policy size=2", "hosts a:1 b:1", "exit a:0 1").stopped == ()  # the agent of b has not started


def test_the_loss_of_a_host_that_ends_the_job_stands_on_the_page_and_not_in_the_log() -> None:
    player = Player()
    story = ("policy min=1 max=2 failures=any", "hosts b:1", "join all", "lost b gone")
    *_, last = (player.run(each) for each in story)
    assert not [line for line in last if "log" in line]
    assert last[-1].endswith(f"; page of a recovery; {MAY_CONTINUE}")
