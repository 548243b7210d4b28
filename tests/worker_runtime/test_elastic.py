"""State that is committed, restored and synchronised, and the loop around a training function."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.elastic import (
    HOSTS_ADDED,
    HOSTS_REMOVED,
    ObjectState,
    State,
    notification_manager,
    run,
    run_fn,
)
from worker_runtime.errors import HorovodInternalError, HostsUpdatedInterrupt


class Journal(State):
    """A state that writes down what is done with it."""

    def __init__(self) -> None:
        super().__init__(lambda value: value, lambda: 0)
        self.lines: list[str] = []

    def save(self) -> None:
        """It is saved."""
        self.lines.append("save")

    def restore(self) -> None:
        """It is restored."""
        self.lines.append("restore")

    def sync(self) -> None:
        """It is synchronised."""
        self.lines.append("sync")

    def reset(self) -> None:
        """It is adapted."""
        self.lines.append("reset")


def make_state(**values: object) -> ObjectState:
    return ObjectState(lambda value: value, lambda: 0, **values)


def train(*outcomes: object) -> Callable[..., Any]:
    """A training function that raises or returns one after the other."""
    left = list(outcomes)

    def function(state: Journal, *args: object) -> object:
        state.lines.append("train")
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome, args

    return function


def test_in_a_job_that_nothing_happens_to_the_state_is_synchronised_and_the_function_runs() -> None:
    state = Journal()
    rejoined: list[None] = []
    assert run_fn(train("done"), lambda: rejoined.append(None))(state, 1, 2) == ("done", (1, 2))
    assert (state.lines, rejoined) == (["sync", "train"], [])


def test_after_a_failure_the_state_is_restored_and_synchronised_again() -> None:
    state = Journal()
    state.register_reset_callbacks([lambda: state.lines.append("first"), lambda: state.lines.append("second")])
    run_fn(train(HorovodInternalError("lost"), "done"), lambda: state.lines.append("join"))(state)
    assert state.lines == ["sync", "train", "restore", "join", "reset", "first", "second", "sync", "train"]


@pytest.mark.parametrize(("skips", "synced"), [(True, []), (False, ["sync"])])
def test_after_an_update_of_hosts_nothing_is_restored(skips: bool, synced: list[str]) -> None:  # noqa: FBT001 - a parameter of pytest
    state = Journal()
    run_fn(train(HostsUpdatedInterrupt(skip_sync=skips), "done"), lambda: state.lines.append("join"))(state)
    assert state.lines == ["sync", "train", "join", "reset", *synced, "train"]


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError):
        run_fn(train(KeyError("x")), lambda: pytest.fail("joined anew"))(Journal())


def test_the_same_failure_is_not_repeated_for_ever() -> None:
    """A shape that differs is the program's own fault, which Horovod repeats without an end."""
    state = Journal()
    with pytest.raises(HorovodInternalError, match="shape"):
        run_fn(train(*[HorovodInternalError("shape")] * 9), lambda: None)(state)
    assert state.lines.count("train") == 3


def test_failures_with_commits_in_between_or_for_other_reasons_are_repeated() -> None:
    state = Journal()
    others = [HorovodInternalError(text) for text in ("a", "a", "b", "a", "a")]
    assert run_fn(train(*others, "done"), lambda: None)(state)[0] == "done"

    def commit_and_fail(state: Journal) -> str:
        state.commit()
        if state.lines.count("save") < 9:
            raise HorovodInternalError("a")
        return "done"

    assert run_fn(commit_and_fail, lambda: None)(Journal()) == "done"


def test_a_decorated_function_keeps_its_name() -> None:
    assert run(train).__name__ == "train"


def test_attributes_come_and_go_with_commits() -> None:
    state = make_state(epoch=1, losses=[1.0], options={"lr": [0.5]}, weights=torch.zeros(1))
    state.epoch, state.options["lr"][0] = 2, 9.0
    state.losses.append(2.0)
    state.weights += 1
    for _ in range(2):  # what was restored once and changed is restored again
        state.restore()
        assert (state.epoch, state.losses, state.options, state.weights.item()) == (1, [1.0], {"lr": [0.5]}, 0.0)
        state.losses.append(3.0)
    state.epoch = 5
    state.commit()
    state.epoch = 6
    state.restore()
    assert (state.epoch, state.losses) == (5, [1.0, 3.0])


def test_objects_that_belong_together_stay_together() -> None:
    shared = object()
    state = make_state(scheduler=shared)
    state.commit()
    state.restore()
    assert state.scheduler is shared


def test_hosts_that_have_changed_interrupt_the_next_commit_once() -> None:
    for updates, skips in (([HOSTS_ADDED], False), ([HOSTS_REMOVED], True), ([HOSTS_REMOVED, HOSTS_ADDED], False)):
        state = make_state(epoch=1)
        state.check_host_updates()
        for timestamp, update in enumerate(updates, start=1):
            state.on_hosts_updated(timestamp, update)
        assert not state._host_messages.empty()
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.commit()
        assert caught.value.skip_sync is skips
        assert state._last_updated_timestamp == len(updates)
        state.on_hosts_updated(1, HOSTS_ADDED)  # heard of before
        state.commit()
        state.on_hosts_updated(9, HOSTS_ADDED)
        state.on_reset()
        state.commit()


def test_only_what_rank_0_knows_counts_and_interrupts_all(ranks: RankPool) -> None:
    def body(who: int) -> object:
        state = ObjectState(lambda value: hvd.broadcast_object(value, 0), hvd.rank, epoch=hvd.rank() + 1)
        state.sync()
        if hvd.rank() == who:
            state.on_hosts_updated(1, HOSTS_ADDED)
        try:
            state.commit()
        except HostsUpdatedInterrupt:
            return "interrupted", state.epoch
        return "went on", state.epoch

    assert ranks.run(body, 0) == [("interrupted", 1)] * 2
    assert ranks.run(body, 1) == [("went on", 1)] * 2


def test_a_function_joins_the_job_anew_and_goes_on_from_the_commit(ranks: RankPool) -> None:
    def body() -> object:
        state = ObjectState(lambda value: hvd.broadcast_object(value, 0), hvd.rank, batch=0)
        runs = []

        @run
        def function(state: ObjectState) -> object:
            runs.append(state.batch)
            while state.batch < 4:
                state.batch += 1
                if state.batch == 2:
                    state.commit()
                if state.batch == 3 and len(runs) == 1:
                    hvd.allreduce(torch.ones(hvd.rank() + 1))  # on which the ranks do not agree
            return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

        return function(state), runs

    assert ranks.run(body) == [(2.0, [0, 2])] * 2


def test_a_state_hears_of_hosts_while_its_function_runs_and_no_longer() -> None:
    state = Journal()

    def function(state: Journal) -> None:
        notification_manager.handle_hosts_updated(1.0, HOSTS_ADDED)
        with pytest.raises(HostsUpdatedInterrupt):
            state.check_host_updates()

    run_fn(function, lambda: None)(state)
    notification_manager.handle_hosts_updated(2.0, HOSTS_ADDED)
    state.check_host_updates()
