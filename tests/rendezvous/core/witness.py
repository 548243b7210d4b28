"""A witness that holds the core to its laws while a job happens."""

import copy
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from rendezvous.core import membership
from rendezvous.core.effects import Depart, Effect, Finish, Launch, Publish, Refuse, Terminate
from rendezvous.core.errors import CoreError
from rendezvous.core.events import Event, Exited, HostsChanged, Joined, Lost, Reported, Stopped, Ticked
from rendezvous.core.model import Assignment, Host, Policy, Slot, Worker
from rendezvous.core.outcome import Cause, Outcome
from rendezvous.core.state import Phase, Standing, State


def number_members(members: Sequence[Slot]) -> tuple[Assignment, ...]:
    """Every member's numbers, straight from their definitions and with no regard to speed."""

    def local_rank(position: int) -> int:
        return sum(1 for other in members[:position] if other.host == members[position].host)

    def alike(position: int) -> list[int]:
        return [other for other in range(len(members)) if local_rank(other) == local_rank(position)]

    return tuple(
        Assignment(
            rank=position,
            size=len(members),
            local_rank=local_rank(position),
            local_size=sum(1 for other in members if other.host == slot.host),
            cross_rank=alike(position).index(position),
            cross_size=len(alike(position)),
        )
        for position, slot in enumerate(members)
    )


class Witness:
    """Tells a job of events, and asserts what must hold after each.

    careful: compares the state before a step with a deep copy, which costs more than the step.
    """

    def __init__(self, policy: Policy, *, careful: bool) -> None:
        self.policy = policy
        self.state = membership.begin(policy)
        self.events: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.illegal = 0
        self.finish: Finish | None = None
        self._careful = careful
        self._launched: set[Worker] = set()
        self._terminated: set[Worker] = set()
        self._exited: dict[Worker, int] = {}
        self._refused: set[Worker] = set()
        self._departed: set[Worker] = set()
        self._wishes: set[Worker] = set()  # of members of the next generation, since the last one
        self._published: list[int] = []

    def tell(self, event: Event) -> tuple[Effect, ...] | None:
        """Let an event happen; what followed, or None when it was refused."""
        before = self.state
        known = copy.deepcopy(before) if self._careful else before
        self.events[type(event).__name__] += 1
        try:
            after, effects = membership.step(before, event)
        except CoreError:
            assert before == known, "a refused event has changed the state"
            self.illegal += 1
            return None
        assert before == known, "a step has changed the state before it"
        self.state = after
        self._note_event(event)
        for effect in effects:
            self.effects[type(effect).__name__] += 1
            self._check_effect(effect)
        self._check_outcome(before, event)
        check_counts(after)
        if isinstance(event, Reported):
            assert membership.step(after, event) == (after, effects), "a repeated report brings news"
        return effects

    def end(self) -> None:
        """Every agent falls silent: the job must come to its end by the clock alone."""
        if not self.state.placement:
            self.tell(HostsChanged((Host("z", self.policy.min_size),)))
        policy = self.policy
        limit = policy.start_timeout_seconds + policy.grace_seconds + 3 * policy.lease_seconds
        last = self.state.now + limit
        while self.state.phase is not Phase.FINISHED:
            assert self.state.now <= last, f"the job has not ended {limit:g} s after the last sign of life"
            self.tell(Ticked(self.state.now + policy.lease_seconds / 2))
        finish = self.finish
        self.tell(Ticked(self.state.now))
        assert self.finish is finish is not None

    def _note_event(self, event: Event) -> None:
        match event:
            case Exited(worker, returncode) if self.finish is None:
                self._exited.setdefault(worker, returncode)
            case Joined(worker, after) if after == (self._published or [0])[-1]:
                self._wishes.add(worker)
            case _:
                pass

    def _check_effect(self, effect: Effect) -> None:
        assert self.finish is None or isinstance(effect, Refuse), "after the end there is nothing but refusals"
        match effect:
            case Launch(worker, assignment):
                record = self.state.workers[worker.slot]
                assert record.worker == worker, "only intended workers are launched"
                assert worker not in self._exited, "a worker that has ended is not launched again"
                assert self.state.outcome is None
                assert assignment == number_members(self.state.placement)[assignment.rank]
                self._launched.add(worker)
            case Terminate(worker, grace_seconds):
                assert 0 <= grace_seconds <= self.policy.grace_seconds
                self._terminated.add(worker)
            case Publish():
                self._check_generation(effect)
            case Refuse(worker):
                self._refused.add(worker)
            case Depart(generation, worker, rank):
                assert self._exited[worker] == 0, "only a worker that has ended well departs"
                assert self.state.generation is not None
                assert self.state.generation.number == generation
                assert self.state.generation.members[rank] == worker
                assert worker not in self._departed, "nobody departs twice"
                self._departed.add(worker)
            case Finish():
                self._check_end(effect)
                self.finish = effect
            case _:
                pass

    def _check_generation(self, publish: Publish) -> None:
        number, members = publish.generation.number, publish.generation.members
        assert self.state.phase is Phase.RUNNING
        assert self.state.generation == publish.generation
        assert number not in self._published
        assert number > max(self._published, default=0)
        assert self.policy.min_size <= len(members) <= self.policy.max_size
        assert set(members) <= self._wishes, "nobody is in a generation without having asked for it"
        assert not self._refused & set(members), "nobody is in a generation who was refused"
        assert not self._exited.keys() & set(members), "nobody is in a generation who has ended"
        slots = [worker.slot for worker in members]
        assert publish.assignments == number_members(slots)
        hosts = [slot.host for slot in slots]
        assert len(set(hosts)) == 1 + sum(a != b for a, b in pairwise(hosts)), "not adjacent"
        self._published.append(number)
        self._wishes.clear()

    def _check_end(self, finish: Finish) -> None:
        assert self.state.phase is Phase.FINISHED
        assert self.state.outcome == finish.outcome
        ended = {record.worker for record in self.state.standing(Standing.ENDED)}
        assert self._launched <= self._terminated | self._exited.keys() | ended, "a worker was forgotten"
        last = {worker: self._exited.get(worker) for worker in (r.worker for r in self.state.workers.values())}
        all_well = bool(last) and all(returncode == 0 for returncode in last.values())
        if finish.outcome.cause is Cause.SUCCEEDED:
            assert all_well

    def _check_outcome(self, before: State, event: Event) -> None:
        outcome = self.state.outcome
        assert (outcome is None) == (self.state.phase in {Phase.FORMING, Phase.RUNNING})
        assert (self.finish is None) == (self.state.phase is not Phase.FINISHED)
        if before.outcome is not None:
            assert outcome == before.outcome, "the first cause decides"
        elif outcome is not None:
            assert explains(outcome, event), f"{event} is not what {outcome} tells of"


def explains(outcome: Outcome, event: Event) -> bool:
    """The outcome that an event has brought about tells of that event."""
    match event:
        case Exited(_, 0):
            return (outcome.cause, outcome.exit_code) == (Cause.SUCCEEDED, 0)
        case Exited(worker, returncode, error):
            code = returncode if returncode > 0 else 128 - returncode
            cause = Cause.WORKER_FAILED if error is None else Cause.COMMAND_NOT_STARTED
            return (outcome.cause, outcome.exit_code, outcome.worker) == (cause, code, worker)
        case Stopped(code, reason):
            return (outcome.cause, outcome.exit_code, outcome.reason) == (Cause.STOPPED, code, reason)
        case Lost(host, reason):
            return outcome.cause is Cause.HOST_LOST and host in outcome.reason and reason in outcome.reason
        case Ticked():
            return (outcome.cause, outcome.exit_code) in {(Cause.HOST_LOST, 75), (Cause.START_TIMED_OUT, 124)}
        case _:
            return False


def check_counts(state: State) -> None:
    """What a state counts along equals a recount."""
    standings = Counter(record.standing for record in state.workers.values())
    assert state.waiting == standings[Standing.WAITING]
    assert state.ended == standings[Standing.ENDED]
    assert (state.waiting > 0) == (state.waiting_since is not None)
    assert (state.deadline is not None) == (state.phase is Phase.DRAINING)
    assert state.refusal is None or state.waiting == 0, "nobody waits for what will never be"
    assert state.phase is not Phase.RUNNING or state.waiting == 0
    assert tuple(slot for slots in state.hosts.values() for slot in slots) == state.placement == tuple(state.workers)
    assert not state.placement or state.policy.min_size <= len(state.placement) <= state.policy.max_size
