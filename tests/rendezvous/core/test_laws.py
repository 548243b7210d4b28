"""What holds in every history of every job: stated in `Checker`, tried with Hypothesis and with plain chance."""

from collections import Counter
from typing import get_args

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rendezvous.core import membership
from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import (
    Begun,
    Declared,
    Effect,
    Event,
    Exited,
    Finish,
    HostsChanged,
    Joined,
    Lost,
    Publish,
    Reported,
    SequencerOpened,
    Stopped,
    Ticked,
)
from rendezvous.core.model import Endpoint, Host, Policy, Recovery, Restarts, Slot, Worker
from rendezvous.core.outcome import Cause
from rendezvous.core.reports import Action, JoinReason, Report
from tests.rendezvous.core.checker import Checker
from tests.rendezvous.core.histories import KINDS, choose_join, choose_report
from tests.seeds import list_seeds

MEAN_EVENTS = 30
LEAST_OF_EACH_KIND = 4  # in 2,000 histories: the rarest comes about 15 times

hosts = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda slots: tuple(Host(f"h{number}", count) for number, count in enumerate(slots))
)
seconds = st.sampled_from([2.0, 10.0, 40.0])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    least = draw(st.integers(1, 6))
    most = draw(st.integers(least, 10))
    recovery = Recovery(elastic_timeout_seconds=draw(seconds))
    limits = (draw(seconds), draw(seconds), draw(st.sampled_from([0.0, 5.0])))
    failures, restarts = draw(st.sampled_from([0, 0, 1, 2, None])), Restarts(draw(st.sampled_from([0, 0, 1, None])))
    return Policy(least, most, failures, *limits, recovery=recovery, restarts=restarts)


class Job(RuleBasedStateMachine):
    """Events in any order, likely and unlikely ones; the checker asserts after each."""

    @initialize(policy=policies())
    def begin(self, policy: Policy) -> None:
        """A job with any policy."""
        self.checker = Checker(policy, careful=True)

    @property
    def is_placed(self) -> bool:
        """The hosts are known."""
        return bool(self.checker.state.workers)

    @rule(hosts=hosts)
    def hosts_change(self, hosts: tuple[Host, ...]) -> None:
        """Once, as a rule."""
        self.checker.apply(HostsChanged(hosts))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data())
    def an_expected_worker_joins(self, data: st.DataObject) -> None:
        """One more towards the next generation."""
        self.checker.apply(choose_join(self.checker.state, lambda some: data.draw(st.sampled_from(some))))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data())
    def all_but_one_join(self, data: st.DataObject) -> None:
        """Without such leaps few histories would get to a second generation."""
        state = self.checker.state
        workers = data.draw(st.permutations([record.worker for record in state.workers.values()]))
        for worker in workers[1:]:
            self.checker.apply(Joined(worker, state.number))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data())
    def an_agent_reports_what_should_run(self, data: st.DataObject) -> None:
        """A sign of life."""
        self.checker.apply(choose_report(self.checker.state, lambda some: data.draw(st.sampled_from(some))))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data(), after=st.integers(0, 3))
    def any_worker_joins(self, data: st.DataObject, after: int) -> None:
        """Late, early, again, or not at all possible."""
        self.checker.apply(Joined(data.draw(self.any_worker()), after))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data(), reason=st.sampled_from(JoinReason), has_state=st.booleans(), needs_state=st.booleans())
    def a_member_joins_again(
        self, data: st.DataObject, reason: JoinReason, *, has_state: bool, needs_state: bool
    ) -> None:
        """For whatever reason it has."""
        state = self.checker.state
        members = [record.worker for record in state.survivors()] or [r.worker for r in state.workers.values()]
        report = Report(reason, "something broke", has_state, needs_state=needs_state)
        self.checker.apply(Joined(data.draw(st.sampled_from(members)), state.number, report))

    @precondition(lambda self: self.is_placed)
    @rule()
    def all_are_in_a_function_that_begins_again(self) -> None:
        """From now on the lost are replaced."""
        for record in self.checker.state.alive():
            self.checker.apply(Declared(record.worker))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data())
    def a_worker_declares_its_state(self, data: st.DataObject) -> None:
        """Known or not."""
        self.checker.apply(Declared(data.draw(self.any_worker()), needs_state=data.draw(st.booleans())))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data())
    def an_agent_reports_anything(self, data: st.DataObject) -> None:
        """Too many workers, too few, or another host's."""
        host = data.draw(st.sampled_from(["h0", "h1", "elsewhere"]))
        self.checker.apply(Reported(host, tuple(data.draw(st.lists(self.any_worker(), max_size=4)))))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data(), returncode=st.sampled_from([0, 0, 0, 1, 3, -9]))
    def a_worker_exits(self, data: st.DataObject, returncode: int) -> None:
        """Well more often than badly, since one failure ends most jobs."""
        self.checker.apply(Exited(data.draw(self.any_worker()), returncode))

    @precondition(lambda self: self.is_placed)
    @rule(data=st.data(), number=st.integers(0, 3))
    def a_sequencer_opens(self, data: st.DataObject, number: int) -> None:
        """On rank 0's host or another, of this generation or another."""
        self.checker.apply(SequencerOpened(data.draw(self.any_worker()).slot.host, number, Endpoint("10.0.0.1", 4711)))

    @rule(host=st.sampled_from(["h0", "h4", "elsewhere"]))
    def a_host_is_begun(self, host: str) -> None:
        """In use or not, and heard of before or not."""
        self.checker.apply(Begun(host))

    @rule(host=st.sampled_from(["h0", "h4", "elsewhere"]))
    def a_host_is_lost(self, host: str) -> None:
        """In use or not."""
        self.checker.apply(Lost(host, "gone"))

    @rule(immediately=st.booleans())
    def the_user_stops_the_job(self, *, immediately: bool) -> None:
        """As often as they like."""
        self.checker.apply(Stopped(130, "interrupted", immediately))

    @rule(step=st.sampled_from([-1.0, 0.0, 0.25, 1.0, 15.0, 1000.0]))
    def time_passes(self, step: float) -> None:
        """Little, enough for a time limit, as much as a sleep takes, or backwards."""
        self.checker.apply(Ticked(self.checker.state.now + step))

    @invariant()
    def the_clock_alone_leads_to_the_end(self) -> None:
        """From every state in which hosts are known."""
        state = self.checker.state
        if not state.workers or state.phase is Phase.FINISHED:
            return
        self.checker.fork().end()

    def any_worker(self) -> st.SearchStrategy[Worker]:
        """Mostly intended workers; now and then a former, a future or an unknown one."""
        intended = [record.worker for record in self.checker.state.workers.values()]
        slots = st.builds(Slot, st.sampled_from(["h0", "h4", "z"]), st.integers(0, 4))
        other = st.builds(Worker, slots, st.integers(1, 3))
        return st.one_of(st.sampled_from(intended), st.sampled_from(intended), other)


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.nightly)])
def test_events_in_any_order_hold_the_laws(examples: int) -> None:
    run_state_machine_as_test(Job, settings=settings(max_examples=examples, stateful_step_count=40))


@settings(max_examples=30)
@given(hosts=hosts, data=st.data())
def test_the_order_in_which_joins_arrive_does_not_matter(hosts: tuple[Host, ...], data: st.DataObject) -> None:
    size = sum(host.slots for host in hosts)
    begun, _ = membership.step(membership.begin(Policy.static(size)), HostsChanged(hosts))
    workers = [record.worker for record in begun.workers.values()]
    outcomes = []
    for order in (workers, data.draw(st.permutations(workers))):
        state = begun
        published: list[Effect] = []
        for worker in order:
            state, effects = membership.step(state, Joined(worker))
            published += effects
        outcomes.append((state, published))
    assert outcomes[0] == outcomes[1]
    assert [type(effect) for effect in outcomes[0][1]] == [Publish]


@settings(max_examples=30)
@given(hosts=hosts, data=st.data())
def test_the_order_in_which_workers_exit_with_0_does_not_matter(hosts: tuple[Host, ...], data: st.DataObject) -> None:
    size = sum(host.slots for host in hosts)
    state, _ = membership.step(membership.begin(Policy.static(size)), HostsChanged(hosts))
    finishes: list[Effect] = []
    for record in data.draw(st.permutations(list(state.workers.values()))):
        assert finishes == []
        state, effects = membership.step(state, Exited(record.worker, 0))
        finishes += effects
    (finish,) = finishes
    assert isinstance(finish, Finish)
    assert finish.outcome.cause is Cause.SUCCEEDED


@pytest.mark.timeout(280)  # on a busy machine
@pytest.mark.parametrize("seeds", list_seeds(), ids=str)
def test_many_histories_hold_the_laws_and_show_every_kind_of_event_effect_phase_and_decision(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            checker = KINDS[seed % len(KINDS)](seed).run()
        except AssertionError as error:
            error.add_note(f"in the history with seed {seed}")
            raise
        counts += checker.events + checker.effects + checker.decisions
        counts.update({f"in {phase}": count for phase, count in checker.phases.items()})
        counts["illegal"] += checker.illegal
        counts["generations beyond the first"] += max(0, checker.effects["Publish"] - 1)
        counts[str(checker.finish.outcome.cause if checker.finish else None)] += 1
    for kind, count in counts.most_common():
        print(f"{count:>8} {kind}")  # noqa: T201 - pytest shows it when this fails, and with -s
    kinds = [kind.__name__ for kind in (*get_args(Event), *get_args(Effect))]
    kinds += [str(each) for each in (*Cause, *Action)] + [f"in {phase}" for phase in Phase]
    least = LEAST_OF_EACH_KIND * min(len(seeds), 2000) // 2000
    assert {kind: counts[kind] for kind in (*kinds, "illegal") if counts[kind] < least} == {}
    assert sum(counts[kind.__name__] for kind in get_args(Event)) >= MEAN_EVENTS * len(seeds)


@pytest.mark.parametrize("seed", range(5))
def test_a_repeated_history_is_the_same(seed: int) -> None:
    for kind in KINDS:
        one, other = kind(seed).run(), kind(seed).run()
        assert (one.state, one.events, one.effects) == (other.state, other.events, other.effects)
