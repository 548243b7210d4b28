"""How long is too long: Horovod's variables, and when to look at what is pending."""

import pytest

from tests.worker_runtime.coordination.sequencer.client import BARRIER, JOIN, PLAIN, connected, serving
from worker_runtime.coordination import wire
from worker_runtime.coordination.sequencer.stalls import StallClock, StallLimits, read_stall_limits
from worker_runtime.coordination.wire import Frame

WARNING, LIMIT, DISABLE = (
    f"HOROVOD_STALL_{name}" for name in ("CHECK_TIME_SECONDS", "SHUTDOWN_TIME_SECONDS", "CHECK_DISABLE")
)


@pytest.mark.parametrize(
    ("environment", "limits", "complaints"),
    [
        ({}, StallLimits(60.0, None), 0),
        ({WARNING: "5"}, StallLimits(5.0, None), 0),
        ({WARNING: "0.5", LIMIT: "1.5"}, StallLimits(0.5, 1.5), 0),
        ({LIMIT: "60"}, StallLimits(60.0, 60.0), 0),
        ({LIMIT: "0", WARNING: ""}, StallLimits(60.0, None), 0),
        ({LIMIT: "59"}, StallLimits(60.0, None), 1),
        ({WARNING: "-1", LIMIT: "soon"}, StallLimits(60.0, None), 2),
        ({WARNING: "inf"}, StallLimits(60.0, None), 1),
        ({WARNING: "nan"}, StallLimits(60.0, None), 1),
        ({DISABLE: "1", LIMIT: "100"}, StallLimits(None, None), 0),
        ({DISABLE: "0"}, StallLimits(60.0, None), 0),
    ],
)
def test_horovods_variables(environment: dict[str, str], limits: StallLimits, complaints: int) -> None:
    reported: list[str] = []
    assert read_stall_limits(environment, reported.append) == limits
    assert len(reported) == complaints
    assert all("is ignored" in text for text in reported)


def test_nothing_is_due_while_nothing_is_pending_or_stalls_are_not_reported() -> None:
    assert StallClock(StallLimits(1.0, 2.0)).find_due(None) is None
    assert StallClock(StallLimits(None, None)).find_due(5.0) is None


def test_a_warning_is_due_again_and_again() -> None:
    clock = StallClock(StallLimits(10.0, None))
    assert clock.find_due(100.0) == pytest.approx(110.0, abs=0.01)
    clock.note_warning(110.0)
    assert clock.find_due(100.0) == pytest.approx(120.0, abs=0.01)
    assert clock.find_due(115.0) == pytest.approx(125.0, abs=0.01)
    assert not clock.is_over(100.0, 1e9)


def test_the_limit_is_due_between_warnings() -> None:
    clock = StallClock(StallLimits(10.0, 15.0))
    clock.note_warning(110.0)
    due = clock.find_due(100.0)
    assert due == pytest.approx(115.0, abs=0.01)
    assert clock.is_over(100.0, due)
    assert not clock.is_over(100.0, 115.0)


def test_a_join_is_warned_of_and_may_last_for_ever() -> None:
    clock = StallClock(StallLimits(10.0, 15.0))
    assert clock.find_due(None, 100.0) == pytest.approx(110.0, abs=0.01)
    assert clock.find_due(105.0, 100.0) == pytest.approx(110.0, abs=0.01)
    clock.note_warning(110.0)
    assert clock.find_due(None, 100.0) == pytest.approx(120.0, abs=0.01)
    assert clock.find_due(105.0, 100.0) == pytest.approx(120.0, abs=0.01)
    assert not clock.is_over(None, 1e9)


def test_a_stall_is_reported_to_the_lowest_rank_that_waits_again_and_again() -> None:
    with serving(3, **{WARNING: "0.2"}) as (_, clients):
        for client in clients[1:]:
            client.ask("allreduce.a", PLAIN)
        for _ in range(2):
            assert "Missing ranks:\n0: [allreduce.a]" in clients[1].read_text(Frame.STALL)
        clients[0].ask("allreduce.a", PLAIN)
        assert clients[0].released().index == clients[2].released().index == 0


def test_settings_that_come_late_hold_for_what_is_pending() -> None:
    with serving(2, **{DISABLE: "1"}) as (_, clients):
        clients[1].ask("allreduce.a", PLAIN)
        clients[0].send(Frame.SETTINGS, wire.encode_settings({WARNING: "0.1"}))
        assert "0: [allreduce.a]" in clients[1].read_text(Frame.STALL)
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
        assert "1: [join]" in clients[0].read_text(Frame.STALL)
        assert "1: [join]" in clients[0].read_text(Frame.STALL)  # the limit is over
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
