"""State that is committed, restored and synchronised, and the loop around a training function."""

import traceback
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import worker_runtime.torch as hvd
from tests.worker_runtime.ranks import RankPool
from worker_runtime.elastic import ObjectState, State, exchange, notification_manager, run, run_fn, run_through
from worker_runtime.errors import HorovodInternalError, HostsUpdatedInterrupt, InitializationError
from worker_runtime.membership.notifications import HOSTS_ADDED, HOSTS_REMOVED
from worker_runtime.membership.runtime import RUNTIME
from worker_runtime.rendezvous import Action, JoinReason, RecoveryDecision


class Journal(State):
    """A state that writes down what is done with it."""

    def __init__(self, *, differs: bool = False) -> None:
        super().__init__(lambda value: value, lambda: 0)
        self.lines: list[str] = []
        self.save, self.restore, self.sync, self.reset = (
            partial(self.lines.append, line) for line in ("save", "restore", "sync", "reset")
        )
        self.needs_sync = lambda: differs


@pytest.fixture(autouse=True)
def _forget_hosts() -> None:
    """The hosts of one test are not repeated to the states of others."""
    notification_manager.forget()


def iter_batches() -> Iterator[int]:
    yield from range(3)


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


REMOVED = RecoveryDecision(Action.RESIZE, removed_only=True)
ADDED = RecoveryDecision(Action.RESIZE)
RESTORED = RecoveryDecision(Action.RESTORE)
BEGUN = RecoveryDecision(Action.BEGIN)
LOST = HorovodInternalError("lost")
ANEW = ["restore", "reset", "sync"]


def interrupt(*, skips: bool) -> HostsUpdatedInterrupt:
    return HostsUpdatedInterrupt(skip_sync=skips)


@pytest.mark.parametrize(
    ("outcomes", "decisions", "lines"),
    [
        ([], [], []),
        ([interrupt(skips=True)], [REMOVED], ["RESIZE", "reset"]),
        ([interrupt(skips=True)], [None], ["RESIZE", "reset"]),
        ([interrupt(skips=False)], [REMOVED], ["RESIZE", "reset", "sync"]),
        ([interrupt(skips=False)], [None], ["RESIZE", "reset", "sync"]),
        ([interrupt(skips=True)], [ADDED], ["RESIZE", "reset", "sync"]),
        ([interrupt(skips=True)], [BEGUN], ["RESIZE", "reset", "sync"]),
        ([interrupt(skips=True)], [RESTORED], ["RESIZE", *ANEW]),
        ([LOST], [RESTORED], ["RESTORE", *ANEW]),
        ([LOST], [REMOVED], ["RESTORE", *ANEW]),
        ([LOST], [None], ["RESTORE", *ANEW]),
        ([interrupt(skips=True), LOST], [REMOVED, None], ["RESIZE", "reset", "train", "RESTORE", *ANEW]),
    ],
)
def test_the_common_decision_says_whether_the_state_is_restored_and_synchronised(
    outcomes: list[Exception], decisions: list[RecoveryDecision | None], lines: list[str]
) -> None:
    """Hosts that were only to go may have come by the time that the job is formed anew: Horovod then hangs."""
    state = Journal()

    def enter(reason: JoinReason, _: str) -> RecoveryDecision | None:
        state.lines.append(reason.name)
        return next(given)

    given = iter(decisions)
    assert run_through(train(*outcomes, "done"), enter)(state, 1, 2) == ("done", (1, 2))
    assert state.lines == ["sync", "train", *lines, *["train"] * bool(lines)]


def test_reset_callbacks_are_called_in_order_after_the_reset() -> None:
    state = Journal()
    state.register_reset_callbacks([lambda: state.lines.append("first"), lambda: state.lines.append("second")])
    run_fn(train(LOST, "done"), lambda: state.lines.append("join"))(state)
    assert state.lines == ["sync", "train", "join", "restore", "reset", "first", "second", "sync", "train"]


def test_a_sync_is_not_skipped_where_ranks_may_differ() -> None:
    state = Journal(differs=True)
    run_through(train(interrupt(skips=True), "done"), lambda *_: REMOVED)(state)
    assert state.lines == ["sync", "train", "reset", "sync", "train"]


def test_a_value_that_cannot_be_pickled_is_named_on_the_ranks_that_do_not_send_it_too() -> None:
    sent: list[object] = []
    state = ObjectState(sent.append, lambda: 1, epoch=0, batches=iter_batches())
    with pytest.raises(ValueError, match=r"the state's batches cannot be pickled.*generator.*keep it outside"):
        state.sync()
    assert sent == []


def test_a_failure_while_the_state_is_synchronised_is_survived() -> None:
    state = Journal()

    def sync() -> None:
        state.lines.append("sync")
        if state.lines.count("sync") == 1:
            raise LOST

    state.sync = sync
    run_through(train("done"), lambda *_: RESTORED)(state)
    assert state.lines == ["sync", *ANEW, "train"]


def test_a_failure_in_a_reset_callback_is_survived() -> None:
    state, failures = Journal(), [HorovodInternalError("rank 1 was lost in the callback"), None]

    def adapt() -> None:
        if failure := failures.pop(0):
            raise failure

    state.register_reset_callbacks([adapt])
    run_through(train(LOST, "done"), lambda *_: RESTORED)(state)
    assert state.lines == ["sync", "train", "restore", "reset", *ANEW, "train"]


@pytest.mark.parametrize(
    ("failure", "reported"),
    [
        ("allreduce 'x' can no longer run: rank 1 has left", "allreduce 'x' can no longer run: rank 1 has left"),
        ("mine", "mine; the function cannot restart: rank 1 has left"),
    ],
)
def test_a_worker_that_cannot_join_anew_after_a_failure_names_the_failure(failure: str, reported: str) -> None:
    def enter(_: JoinReason, trouble: str) -> RecoveryDecision | None:
        assert trouble == failure
        raise InitializationError("rank 1 has left")

    with pytest.raises(HorovodInternalError) as caught:
        run_through(train(HorovodInternalError(failure)), enter)(Journal())
    assert str(caught.value) == reported
    shown = traceback.format_exception(caught.value)
    assert [line for line in shown if line.startswith("Traceback")] == shown[:1]
    assert "raise outcome" in shown[-2], shown  # in the program
    with pytest.raises(InitializationError, match="rank 1 has left"):
        run_through(train(HostsUpdatedInterrupt()), lambda reason, _: enter(reason, failure))(Journal())


@pytest.mark.parametrize("trouble", ["rank 1 has left", "mine"])
def test_the_cause_of_the_program_s_own_failure_is_shown_with_it(trouble: str) -> None:
    def fail(_: Journal) -> None:
        raise HorovodInternalError(trouble) from KeyError("the program's own")

    def enter(*_: object) -> RecoveryDecision | None:
        raise InitializationError("rank 1 has left")

    with pytest.raises(HorovodInternalError) as caught:
        run_through(fail, enter)(Journal())
    assert isinstance(caught.value.__cause__, KeyError)
    assert "InitializationError" not in "".join(traceback.format_exception(caught.value))


def test_a_state_is_declared_while_the_function_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Journal()

    class Declaration:
        def __enter__(self) -> None:
            state.lines.append("declared")

        def __exit__(self, *_: object) -> None:
            state.lines.append("withdrawn")

    monkeypatch.setattr(RUNTIME, "declare_state", Declaration)
    with pytest.raises(KeyError):
        run_fn(train(HostsUpdatedInterrupt(), KeyError("x")), lambda: None)(state)
    assert state.lines == ["declared", "sync", "train", "reset", "sync", "train", "withdrawn"]


def test_an_offer_that_comes_while_the_job_is_joined_anew_is_not_lost() -> None:
    """And one that led to it does not lead to another."""
    state = Journal()
    commits = []

    def function(state: Journal) -> None:
        if not commits:
            notification_manager.handle_hosts_updated(1, HOSTS_ADDED)
        commits.append(len(state.lines))
        state.commit()

    def enter(reason: JoinReason, _: str) -> RecoveryDecision | None:
        assert reason is JoinReason.RESIZE
        if len(commits) == 1:
            notification_manager.handle_hosts_updated(2, HOSTS_REMOVED)
        return REMOVED

    run_through(function, enter)(state)
    assert len(commits) == 3
    assert state._last_updated_timestamp == 2


def test_an_offer_that_was_overtaken_by_a_failure_interrupts_no_worker() -> None:
    """The offered worker has been taken in since."""
    state = Journal()

    def function(state: Journal) -> None:
        if "restore" not in state.lines:
            notification_manager.handle_hosts_updated(1, HOSTS_ADDED)
            raise HorovodInternalError("lost")
        state.commit()

    run_through(function, lambda *_: RESTORED)(state)
    assert state.lines == ["sync", "restore", "reset", "sync", "save"]


def test_a_worker_that_has_left_the_job_in_the_function_is_not_brought_back() -> None:
    joined: list[None] = []

    def leave_and_continue(_: State) -> None:
        hvd.shutdown()
        hvd.allreduce(torch.ones(1))

    hvd.init()
    with pytest.raises(HorovodInternalError, match="Horovod has not been initialized"):
        run_fn(leave_and_continue, lambda: joined.append(None))(Journal())
    assert joined == []


def test_the_same_failure_is_not_repeated_for_ever() -> None:
    """A shape that differs is the program's own fault, which Horovod repeats without an end."""
    state = Journal()
    with pytest.raises(HorovodInternalError, match="shape"):
        run_fn(train(*[HorovodInternalError("shape")] * 9), lambda: None)(state)
    assert state.lines.count("train") == 3


def test_failures_with_commits_in_between_or_for_other_reasons_are_repeated() -> None:
    others = [HorovodInternalError(text) for text in ("a", "a", "b", "a", "a")]
    assert run_fn(train(*others, "done"), lambda: None)(Journal())[0] == "done"

    def commit_and_fail(state: Journal) -> str:
        state.commit()
        if state.lines.count("save") < 9:
            raise HorovodInternalError("a")
        return "done"

    assert run_fn(commit_and_fail, lambda: None)(Journal()) == "done"


def test_a_decorated_function_keeps_its_name() -> None:
    assert run(train).__name__ == "train"


def test_attributes_return_to_the_last_commit() -> None:
    state = make_state(epoch=1)
    for epoch in (5, 6):
        state.epoch = epoch
        state.commit()
        state.epoch = 9
        state.restore()
        assert state.epoch == epoch


# What a state may hold, what changes it, and how it looks then.
CHANGES: list[tuple[Any, Callable[[Any], object]]] = [
    ([[1], ([2],), {"a": [3]}], lambda lists: (lists[0].append(9), lists[1][0].append(9), lists[2]["a"].append(9))),
    (OrderedDict(b=[1], a=[2]), lambda ordered: (ordered["b"].append(9), ordered.move_to_end("b"))),
    (defaultdict(list, a=[1]), lambda default: default["new"].append(9)),
    (deque([[1], [2]], maxlen=2), lambda recent: recent[1].append(9)),
    (Counter(a=1), lambda counted: counted.update(a=9)),
    ({"a"}, lambda names: names.add("b")),
    (bytearray(b"a"), lambda raw: raw.append(9)),
    (torch.zeros(1), lambda weights: weights.add_(1)),
]


@pytest.mark.parametrize(("value", "change"), CHANGES, ids=lambda each: type(each).__name__)
def test_changes_inside_a_container_are_undone_at_any_depth(value: Any, change: Callable[[Any], object]) -> None:
    """Horovod keeps the containers themselves, so that nothing of it is."""
    expected = repr(value)  # with its kind, its order and its limits
    state = make_state(value=value)
    for _ in range(2):  # what was restored once and changed is restored again
        change(state.value)
        assert repr(state.value) != expected
        state.restore()
        assert repr(state.value) == expected


def test_a_result_that_autograd_follows_can_be_a_part_of_the_state() -> None:
    state = make_state(loss=torch.ones(1, requires_grad=True) * 2)
    state.commit()
    state.restore()
    assert state.loss.item() == 2


def test_objects_that_belong_together_stay_together() -> None:
    shared = object()
    state = make_state(scheduler=shared)
    state.commit()
    state.restore()
    assert state.scheduler is shared


def test_hosts_that_have_changed_interrupt_the_next_commit_once() -> None:
    for updates, skips in (
        ([HOSTS_ADDED], False),
        ([HOSTS_REMOVED], True),
        ([HOSTS_REMOVED, HOSTS_ADDED], False),
        ([HOSTS_ADDED, 0, HOSTS_REMOVED], True),  # what was undone does not count
    ):
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


def test_an_update_that_was_undone_interrupts_no_worker() -> None:
    """In Horovod the job is formed anew for it."""
    state = make_state(epoch=1)
    state.on_hosts_updated(1, HOSTS_ADDED)
    state.on_hosts_updated(2, 0)
    state.commit()
    assert state._last_updated_timestamp == 2


def test_a_loss_that_interrupted_no_rank_begins_the_function_anew_where_something_depends_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No worker joins anew for it, and nothing is restored or synchronised."""
    sizes = iter((3, 3, 2, 2, 2, 2))  # when the function begins, and at each look
    monkeypatch.setattr(exchange, "count_ranks", lambda: next(sizes))
    state = Journal()
    engine = SimpleNamespace(supersede_sets=lambda: state.lines.append("begin again"))
    monkeypatch.setattr(RUNTIME, "world", SimpleNamespace(engine=engine))
    state.register_reset_callbacks([lambda: state.lines.append("callback")])

    def function(state: Journal) -> str:
        state.lines.append("train")
        for _ in range(2):
            state.check_host_updates()
        return "done"

    assert run_fn(function, lambda: state.lines.append("join"))(state) == "done"
    assert state.lines == ["sync", "train", "begin again", "reset", "callback", "train"]


def test_a_loss_interrupts_no_state_that_nothing_depends_on_nor_one_that_no_function_runs_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "count_ranks", iter((3, 2, 2)).__next__)
    state = Journal()
    run_fn(lambda state: state.check_host_updates(), lambda: None)(state)
    state.register_reset_callbacks([lambda: None])
    state.check_host_updates()
    assert state.lines == ["sync"]


def test_only_notices_of_rank_0_count_and_interrupt_all(ranks: RankPool) -> None:
    def body(who: int) -> object:
        state = ObjectState(lambda value: hvd.broadcast_object(value, 0), hvd.rank, epoch=hvd.rank() + 1)
        state.sync()
        if hvd.rank() == who:
            state.on_hosts_updated(1, HOSTS_ADDED)
        try:
            state.commit()
        except HostsUpdatedInterrupt:
            return "interrupted", state.epoch
        return "continued", state.epoch

    assert ranks.run(body, 0) == [("interrupted", 1)] * 2
    assert ranks.run(body, 1) == [("continued", 1)] * 2


def test_a_function_joins_the_job_anew_and_continues_from_the_commit(ranks: RankPool) -> None:
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
