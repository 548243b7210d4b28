"""How each end is reported: exit code, cause and reason."""

import pytest

from rendezvous.core.outcome import Cause, Outcome, blame_host, exit_code, lose_state
from tests.rendezvous.core.commands import parse_worker

WORKER = parse_worker("a:1")


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (1, 1), (255, 255), (-1, 129), (-9, 137), (-15, 143)])
def test_a_returncode_is_reported_as_a_shell_reports_it(returncode: int, code: int) -> None:
    assert exit_code(returncode) == code


@pytest.mark.parametrize(
    ("returncode", "code"), [(1, 1), (3, 3), (-11, 139), (-9, 75), (-15, 75), (137, 75), (None, 75)]
)
def test_a_job_whose_last_state_failed_itself_has_that_workers_exit_code(returncode: int | None, code: int) -> None:
    first = Outcome(9, Cause.WORKER_FAILED, "it failed", WORKER, 1, returncode)
    outcome = lose_state("no worker is left", first)
    assert (outcome.exit_code, outcome.cause, outcome.worker) == (code, Cause.STATE_LOST, WORKER)
    assert lose_state("no worker is left", blame_host("b", "gone")).exit_code == 75
