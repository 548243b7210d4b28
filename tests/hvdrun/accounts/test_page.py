"""The line at the end of a job, and the table of -v."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvdrun.accounts.history import History
from hvdrun.accounts.page import LEAST_SECONDS, MOST_ROWS, describe_goodput, describe_unseen, render_table
from rendezvous.core.model import Host
from rendezvous.wire.accounts import Account, WaitedFor
from tests.hvdrun.accounts.accounts import build_history, make_worker, train
from tests.hvdrun.specs import build_spec, with_fields


def build_slow_job() -> History:
    accounts = (
        Account(
            make_worker(rank, f"server{1 + rank // 4}"),
            is_measured=True,
            total_seconds=100.0,
            start_seconds=2.0,
            compute_seconds=66.8,
            waiting_seconds=31.0,
            steps=500,
            waited_for=(WaitedFor(5, 31.0, 412),) if rank != 5 else (),
        )
        for rank in range(8)
    )
    return build_history(*accounts)


def test_the_line_names_the_rank_that_the_others_waited_for() -> None:
    line = "goodput 97.8 %; rank 5 (server2) was last in 412 of 500 steps: the others waited 31 s for it"
    assert describe_goodput(build_slow_job(), LEAST_SECONDS) == line


def test_the_line_names_the_rank_that_came_late_to_the_communication() -> None:
    shares = (29.0, 29.0, 2.0)
    accounts = [
        Account(make_worker(rank), is_measured=True, total_seconds=75.0, communication_seconds=blocked, steps=100)
        for rank, blocked in enumerate(shares)
    ]
    line = describe_goodput(build_history(*accounts), LEAST_SECONDS)
    assert line is not None
    assert line.endswith("; rank 2 (server1) came late to the communication: the others waited 27 s for it")


def test_a_short_job_has_no_line() -> None:
    assert describe_goodput(build_slow_job(), LEAST_SECONDS - 0.1) is None


@pytest.mark.parametrize("accounts", [(), (Account(make_worker(0), total_seconds=100.0),)])
def test_a_job_of_plain_programs_has_no_line(accounts: tuple[Account, ...]) -> None:
    assert describe_goodput(build_history(*accounts), 1000.0) is None


def test_options_that_a_plain_program_does_not_use_are_named() -> None:
    spec = build_spec(("python", "train.py"), 1, (Host("localhost", 1),), Path("/"))
    assert describe_unseen(spec) is None
    one = describe_unseen(with_fields(spec, check_nan=True, check_replicas=1))
    assert one is not None
    assert one.startswith("no worker called hvd.init(), so --check-nan had no effect: DDP, FSDP")
    two = describe_unseen(with_fields(spec, check_nan=True, timeline="t.json", hang_timeout_seconds=5.0))
    assert two is not None
    assert "so --check-nan, --timeline and --hang-timeout had no effect" in two


def test_a_healthy_job_has_only_its_goodput() -> None:
    history = build_history(*train(4, {}, 0.01, 1))
    assert describe_goodput(history, 1000.0) == "goodput 96.8 %"


def test_a_long_wait_is_given_in_minutes() -> None:
    history = build_history(*train(2, {1: 0.5}, 0.001, 1))
    line = describe_goodput(history, 1000.0)
    assert line is not None
    assert line.endswith(": the others waited 4 min 10 s for it")


def test_the_table_has_a_row_for_each_rank_and_a_column_for_each_part_that_was_used() -> None:
    table = list(render_table(build_slow_job()))
    assert table[0] == "rank  host         total    start  compute  waiting  unknown  waited most for"
    assert table[1] == "   0  server1:0    100.0      2.0     66.8     31.0      0.2  rank 5: 31.0"
    assert table[6] == "   5  server2:5    100.0      2.0     66.8     31.0      0.2"
    assert table[-1] == "all                800.0     16.0    534.4    248.0      1.6"


def test_the_table_of_plain_programs_has_their_times_alone() -> None:
    history = build_history(Account(make_worker(0), total_seconds=3.0))
    assert list(render_table(history)) == [
        "rank  host         total  waited most for",
        "   0  server1:0      3.0",
        "all                  3.0",
    ]
    assert list(render_table(build_history())) == []


def test_a_worker_without_a_measured_account_has_dashes_beside_the_others() -> None:
    measured, plain = train(2, {}, 0.01, 1)
    history = build_history(measured, replace(plain, is_measured=False))
    row = list(render_table(history))[2]
    assert row.split()[2:] == [f"{plain.total_seconds:.1f}", "-", "-", "-", "-", "rank", "0:", row.split()[-1]]


def test_the_table_parts_the_worker_of_a_slot_from_the_one_before() -> None:
    first, _ = train(2, {}, 0.01, 1)
    second = replace(first, worker=replace(first.worker, incarnation=2), commit_seconds=0.01)
    title, *rows, _ = render_table(build_history(first, second))
    assert [row.split()[1] for row in rows] == ["server1:0", "server1:0#2"]
    assert "commit" not in title


def test_a_long_table_is_folded() -> None:
    table = list(render_table(build_history(*train(64, {}, 0.01, 1, steps=10))))
    assert len(table) == MOST_ROWS + 2
    assert table[-2] == "... and 45 workers more: --outcome FILE writes all"
    assert table[-1].startswith("all")
