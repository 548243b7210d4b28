"""How long is too long: Horovod's variables, and when to look at what is pending."""

import pytest

from tests.worker_runtime.coordination.sequencer.client import BARRIER, JOIN, KEY, PLAIN, connected, serving
from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.ordering import PendingSummary
from worker_runtime.coordination.ordering.requests import Request
from worker_runtime.coordination.sequencer.stalls import StallClock, StallLimits, read_stall_limits
from worker_runtime.coordination.sequencer.waits import Wait
from worker_runtime.coordination.wire import Frame

WARNING, LIMIT, DISABLE = (
    f"HOROVOD_STALL_{name}" for name in ("CHECK_TIME_SECONDS", "SHUTDOWN_TIME_SECONDS", "CHECK_DISABLE")
)
HANG = "HVD_HANG_TIMEOUT"


@pytest.mark.parametrize(
    ("environment", "limits", "complaints"),
    [
        ({}, StallLimits(10.0, None), 0),
        ({WARNING: "5"}, StallLimits(5.0, None), 0),
        ({WARNING: "0"}, StallLimits(None, None), 0),
        ({WARNING: "0", LIMIT: "3"}, StallLimits(None, 3.0), 0),
        ({WARNING: "0.5", LIMIT: "1.5"}, StallLimits(0.5, 1.5), 0),
        ({LIMIT: "10"}, StallLimits(10.0, 10.0), 0),
        ({LIMIT: "0", WARNING: ""}, StallLimits(10.0, None), 0),
        ({LIMIT: "9"}, StallLimits(10.0, None), 1),
        ({WARNING: "-1", LIMIT: "soon"}, StallLimits(10.0, None), 2),
        ({WARNING: "inf"}, StallLimits(10.0, None), 1),
        ({WARNING: "nan"}, StallLimits(10.0, None), 1),
        ({DISABLE: "1", LIMIT: "100"}, StallLimits(None, None), 0),
        ({DISABLE: "1", HANG: "100"}, StallLimits(None, None, 100.0), 0),
        ({DISABLE: "0", HANG: "0"}, StallLimits(10.0, None), 0),
    ],
)
def test_horovods_variables_set_the_limits_of_stalls(
    environment: dict[str, str], limits: StallLimits, complaints: int
) -> None:
    reported: list[str] = []
    assert read_stall_limits(environment, reported.append) == limits
    assert len(reported) == complaints
    assert all("is ignored" in text for text in reported)


def wait(since: float, still_since: float | None = None, name: str = "a", signature: object = PLAIN) -> Wait:
    """An operation for which rank 1 is missing."""
    pending = PendingSummary(Request(0, name, signature), (0,), (1,))
    return Wait(pending, since, since if still_since is None else still_since)


def test_a_check_is_not_due_while_no_operation_is_pending_or_stalls_are_not_reported() -> None:
    assert StallClock(StallLimits(1.0, 2.0, 3.0)).find_due([]) is None
    assert StallClock(StallLimits(None, None)).find_due([wait(5.0)]) is None
    assert StallLimits(None, None).shortest is None
    assert StallLimits(10.0, None, 5.0).shortest == 5.0


def test_a_report_is_due_again_when_the_wait_is_twice_as_long() -> None:
    clock, waits = StallClock(StallLimits(10.0, None)), [wait(100.0), wait(104.0)]
    for due in (110.0, 120.0, 140.0, 180.0):
        assert clock.find_due(waits) == pytest.approx(due, abs=0.01)
        assert not clock.take_warning(waits, due - 1)
        assert clock.take_warning(waits, due + 0.01)
    assert not clock.is_over(waits, 1e9)


def test_a_late_look_reports_once() -> None:
    clock = StallClock(StallLimits(10.0, None))
    assert clock.take_warning([wait(100.0)], 139.0)
    assert clock.find_due([wait(100.0)]) == pytest.approx(140.0, abs=0.01)


def test_another_wait_is_reported_by_itself() -> None:
    clock = StallClock(StallLimits(10.0, None))
    assert clock.take_warning([wait(100.0)], 111.0)
    assert clock.find_due([wait(115.0)]) == pytest.approx(125.0, abs=0.01)


def test_ranks_whose_other_operations_are_released_have_not_waited() -> None:
    clock = StallClock(StallLimits(10.0, None))
    assert clock.find_due([wait(100.0, still_since=108.0)]) == pytest.approx(118.0, abs=0.01)


def test_the_limit_is_due_between_reports() -> None:
    clock, waits = StallClock(StallLimits(10.0, 15.0)), [wait(100.0)]
    assert clock.take_warning(waits, 111.0)
    due = clock.find_due(waits)
    assert due == pytest.approx(115.0, abs=0.01)
    assert clock.is_over(waits, due)
    assert not clock.is_over(waits, 115.0)


def test_a_join_is_reported_and_may_last_for_ever() -> None:
    clock, join = StallClock(StallLimits(10.0, 15.0)), wait(100.0, name="join", signature=JOIN)
    assert clock.find_due([join]) == pytest.approx(110.0, abs=0.01)
    assert clock.find_due([join, wait(105.0)]) == pytest.approx(110.0, abs=0.01)
    assert clock.take_warning([join], 111.0)
    assert clock.find_due([join]) == pytest.approx(120.0, abs=0.01)
    assert not clock.is_over([join], 1e9)


def test_a_hang_is_counted_from_the_last_release_of_any_set_and_reported_until_it_ends() -> None:
    clock, waits = StallClock(StallLimits(None, None, 30.0)), [wait(100.0)]
    clock.released_at = 120.0
    assert clock.find_due(waits) == pytest.approx(150.0, abs=0.01)
    assert not clock.take_hang(waits, 149.0)
    assert clock.take_hang(waits, 151.0)
    assert clock.find_due(waits) == pytest.approx(181.0, abs=0.01)
    assert not clock.take_hang(waits, 180.0)
    assert clock.take_hang(waits, 182.0), "whoever was told may have ended before it did anything"
    clock.released_at = 200.0
    assert clock.take_hang(waits, 231.0)


def test_a_wait_is_printed_by_the_lowest_rank_that_waits_again_and_again() -> None:
    with serving(3, **{WARNING: "0.2"}) as (_, clients):
        for client in clients[1:]:
            client.ask("allreduce.a", PLAIN)
        said = "rank 0 has not called allreduce 'a'; 2 others have waited there for 0."
        for _ in range(2):
            assert said in clients[1].read_text(Frame.STALL)
        clients[0].ask("allreduce.a", PLAIN)
        assert clients[0].released().index == clients[2].released().index == 0


def test_a_wait_and_its_end_are_reported_to_an_owner_that_wants_them() -> None:
    with serving(2, **{WARNING: "0.1", HANG: "0.3"}) as (process, clients):
        process.activate(2, 2, KEY, reports=True)
        with connected(process, 0, 2) as waiting, connected(process, 1, 2) as missing:
            waiting.ask("allreduce.a", PLAIN)
            reports = [process.read_report() for _ in range(3)]
            missing.ask("allreduce.a", PLAIN)
            while (last := process.read_report()).operations:
                reports.append(last)
            assert waiting.released().index == missing.released().index == 0
        assert clients
    assert all(each.generation == 2 and each.missing == {1} and each.waiting == {0} for each in reports)
    assert any(each.is_hang for each in reports)
    assert reports[0].operations[0].name == "allreduce 'a'"
    assert 0.1 <= reports[0].operations[0].seconds <= reports[-1].operations[0].seconds


def test_the_end_of_a_hang_is_reported_without_other_reports() -> None:
    with serving(2, **{WARNING: "0", HANG: "0.1"}) as (process, clients):
        process.activate(2, 2, KEY, reports=True)
        with connected(process, 0, 2) as waiting, connected(process, 1, 2) as missing:
            waiting.ask("allreduce.a", PLAIN)
            assert process.read_report().is_hang
            missing.ask("allreduce.a", PLAIN)
            assert not process.read_report().operations
        assert clients


def test_settings_that_come_late_hold_for_what_is_pending() -> None:
    with serving(2, **{DISABLE: "1"}) as (_, clients):
        clients[1].ask("allreduce.a", PLAIN)
        clients[0].send(Frame.SETTINGS, wire.encode_settings({WARNING: "0.1"}))
        assert "rank 0 has not called allreduce 'a'" in clients[1].read_text(Frame.STALL)
        clients[1].send(Frame.SETTINGS, wire.encode_settings({}))
        assert "settings came from another rank than 0" in clients[0].read_text(Frame.FAILURE)


def test_the_stall_limit_ends_the_generation_and_names_rank_and_operation() -> None:
    with serving(2, **{WARNING: "0.1", LIMIT: "0.3"}) as (_, clients):
        clients[0].ask("allreduce.a", PLAIN)
        while (response := clients[0].response())[0] is Frame.STALL:
            pass
        assert response[0] is Frame.FAILURE
        assert response[1] == clients[1].read_text(Frame.FAILURE)
        assert "allreduce 'a' waited for rank 1" in str(response[1])


def test_a_join_may_last_and_is_mentioned_when_nothing_happens() -> None:
    with serving(2, **{WARNING: "0.2", LIMIT: "0.3"}) as (_, clients):
        clients[0].ask("join", JOIN)
        assert "rank 1 has not called join" in clients[0].read_text(Frame.STALL)
        assert "rank 1 has not called join" in clients[0].read_text(Frame.STALL)  # the limit is over
        clients[1].ask("join", JOIN)
        assert clients[1].released().value == 1


def test_a_variable_that_cannot_be_followed_is_reported_to_one_worker_once() -> None:
    settings = {WARNING: "abc"}
    with serving(2, **settings) as (process, clients):
        assert clients[0].read_text(Frame.STALL) == f"{WARNING}=abc is ignored: a number of seconds was expected"
        for client in clients:
            client.ask("a", BARRIER)
        assert all(client.released() for client in clients)
        process.activate(2, 1)
        with connected(process, 0, 2) as client:
            client.send(Frame.SETTINGS, wire.encode_settings(settings))
            client.ask("a", BARRIER)
            assert client.released()
