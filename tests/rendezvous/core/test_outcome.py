"""How each end is told: exit code, cause and reason."""

import pytest

from rendezvous.core.events import Exited
from rendezvous.core.outcome import (
    Cause,
    Outcome,
    blame_host,
    blame_worker,
    exit_code,
    lose_state,
    stop,
    succeed,
    time_out,
)
from tests.rendezvous.core.commands import parse_worker

WORKER = parse_worker("a:1")


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (1, 1), (255, 255), (-1, 129), (-9, 137), (-15, 143)])
def test_a_return_code_is_told_as_a_shell_tells_it(returncode: int, code: int) -> None:
    assert exit_code(returncode) == code


@pytest.mark.parametrize(
    ("event", "code", "cause", "reason"),
    [
        (Exited(WORKER, 3), 3, Cause.WORKER_FAILED, "rank 5 (a:1) failed with exit code 3"),
        (Exited(WORKER, -11), 139, Cause.WORKER_FAILED, "rank 5 (a:1) was killed by signal 11"),
        (Exited(WORKER, -9, "it stood"), 137, Cause.WORKER_PUT_DOWN, "rank 5 (a:1) was ended: it stood"),
        (Exited(WORKER, 127, "no python9", cannot_start=True), 127, Cause.COMMAND_NOT_STARTED, "no python9"),
    ],
)
def test_the_blamed_worker_is_named_with_what_it_did(event: Exited, code: int, cause: Cause, reason: str) -> None:
    assert blame_worker(event, 5) == Outcome(code, cause, reason, WORKER, 5, event.returncode)


@pytest.mark.parametrize(
    ("outcome", "code", "cause"),
    [
        (succeed(), 0, Cause.SUCCEEDED),
        (blame_host("b", "it is gone"), 75, Cause.HOST_LOST),
        (time_out("rank 1 did not come"), 124, Cause.START_TIMED_OUT),
        (stop(143, "SIGTERM came to hvdrun"), 143, Cause.STOPPED),
    ],
)
def test_an_outcome_without_a_guilty_worker_names_none(outcome: Outcome, code: int, cause: Cause) -> None:
    assert (outcome.exit_code, outcome.cause, outcome.worker, outcome.rank) == (code, cause, None, None)


@pytest.mark.parametrize(
    ("returncode", "code"), [(1, 1), (3, 3), (-11, 139), (-9, 75), (-15, 75), (137, 75), (None, 75)]
)
def test_where_the_last_with_the_state_has_failed_by_itself_its_exit_code_says_so(
    returncode: int | None, code: int
) -> None:
    first = Outcome(9, Cause.WORKER_FAILED, "it failed", WORKER, 1, returncode)
    outcome = lose_state("nobody is left", first)
    assert (outcome.exit_code, outcome.cause, outcome.worker) == (code, Cause.STATE_LOST, WORKER)
    assert lose_state("nobody is left", blame_host("b", "gone")).exit_code == 75


def test_a_lost_host_is_named() -> None:
    assert blame_host("b", "its agent fell silent").reason == "host b was lost: its agent fell silent"
