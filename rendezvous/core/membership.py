"""Membership: `step(state, event) -> (state, effects)`, the one place where a job's fate is decided.

Theory of operation
-------------------
A job is a set of slots with one *intended* worker each. The shell around this core (server.py) turns every call, report
and tick into an event, and carries out the effects; nothing here waits, knows the time or fails.

                  all have joined               a member is lost, or cannot go on
    FORMING  ------------------->  RUNNING  ------------------->  REFORMING
       |     <-------------------     ^                            |     |
       |      a member joins again    |     all have reported:     |     |
       |                              +---- the verdict -----------+     |
       |      (and is the generation lost meanwhile: REFORMING)          |
       |                                                                 |
       +---- a failure that is not allowed, a limit, an order ----+------+     (from RUNNING, too)
                                                                  v
                                                               DRAINING  -- all have ended, or the deadline passed -+
                                                                                                                    v
             from each of the three, when all have ended with 0  ---------------------------------------------> FINISHED

- forming.py   workers are started; those that call `init()` wait until all have. The last join publishes the next
               generation. A job in which nobody joins is one of plain programs: it goes from here to FINISHED.
- running.py   a generation is live. `shutdown()` and `init()` lead back to FORMING, and so does a resize, which all
               members take at the same commit.
- reforming.py a generation was interrupted: each survivor tells what is pending on it, and `verdict.decide` says what
               all of them do: go on where they stand, return to the last commit, or end. With too few left they wait.
- endings.py   what these have in common: exits, lost hosts, other hosts, stop notices (stopping.py), orders, time. Once
               a member has ended well there is no further generation: those that wait, and those that join later, are
               refused. If another fails, that is how the job ends, once the others have come to their own ends: they
               may be past their training.
- draining.py  the outcome is decided by the first cause and never changes; whoever is left is ended.
- finished.py  late messages change nothing.

Losses are in losses.py, what is held against slots and hosts in blame.py. staffing.py starts and ends workers as slots
come, fail and go; growth.py offers a resize to those who train; composition.py says who is in the next generation, and
in which order; joining.py lets workers wait, and publication.py passes the verdict when nobody is missing.

A static job takes the same path. Its placement is fixed and no failure is allowed, so it is never interrupted, and all
its verdicts are BEGIN.

What holds throughout (the laws are in tests/rendezvous/core/test_laws.py):
- Orders follow from state against report (intent.py): a Launch or Terminate may be lost or repeated.
- An event about an incarnation that is not the intended one is stale, and changes nothing.
- An event that contradicts the state raises IllegalEventError and changes nothing.
- Generation numbers only grow; each is published once, and never with fewer or more workers than the policy says.
- A survivor keeps its place among survivors, and rank 0 holds the state that the others copy.
- Each pending operation of each survivor is decided once, and nothing that was committed anywhere is revoked.
- From every state the job runs or ends, if agents report and workers join; and it ends, if all fall silent.
"""

from rendezvous.core import draining, finished, forming, reforming, running
from rendezvous.core.effects import Effect, Refuse
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Begun, Declared, Event, Exited, Joined, Lost, Reported, StoreOpened, Ticked
from rendezvous.core.model import Policy, Worker
from rendezvous.core.state import Phase, Standing, State
from rendezvous.core.timeouts import advance, hear

_HANDLERS = {
    Phase.FORMING: forming.handle,
    Phase.RUNNING: running.handle,
    Phase.REFORMING: reforming.handle,
    Phase.DRAINING: draining.handle,
    Phase.FINISHED: finished.handle,
}


def begin(policy: Policy) -> State:
    """A job whose hosts are not known yet."""
    return State(policy)


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """What follows from one event.

    Raises:
        IllegalEventError: the event contradicts the state, which is unchanged.
        TooFewSlotsError: the hosts do not offer enough slots; the state is unchanged.
    """
    match event:
        case Ticked(now):
            if state.started is not None and now < state.now:
                raise IllegalEventError(event, f"the clock already showed {state.now:g}")
            state = advance(state, now)
        case Begun(host) | Reported(host) | Lost(host):
            if host not in state.hosts:
                return _ignore_former(state, event, host)
            if isinstance(event, Reported):
                _refuse_strangers(event)
            if not isinstance(event, Lost):
                state = hear(state, host)
        case Joined(worker) | Exited(worker) | StoreOpened(worker) | Declared(worker):
            _refuse_future(state, event)
            stale = _staleness(state, event, worker)
            if stale is not None:
                return state, (Refuse(worker, stale),) if isinstance(event, Joined) else ()
        case _:
            pass
    return _HANDLERS[state.phase](state, event)


def _refuse_strangers(event: Reported) -> None:
    """One host's agent does not speak for another."""
    for worker in event.running:
        if worker.slot.host != event.host:
            raise IllegalEventError(event, f"worker {worker} is not on host {event.host}")


def _ignore_former(state: State, event: Begun | Reported | Lost, host: str) -> tuple[State, tuple[Effect, ...]]:
    """An agent that was dismissed is not heard any more; that it begins or is gone is no news."""
    is_known = any(slot.host == host for slot in state.workers)
    if not is_known or isinstance(event, Reported):
        raise IllegalEventError(event, f"host {host} is not in use{' any more' if is_known else ''}")
    return state, ()


def _refuse_future(state: State, event: Joined | Exited | StoreOpened | Declared) -> None:
    """Nobody can know of a generation that has not been published."""
    match event:
        case Joined(_, number) | StoreOpened(_, number) if number > state.number:
            raise IllegalEventError(event, f"generation {number} has not been published")
        case _:
            pass


def _staleness(state: State, event: Event, worker: Worker) -> str | None:
    """Why an event about this worker comes too late; None when it is the intended one and has not ended."""
    record = state.workers.get(worker.slot)
    if record is None:
        raise IllegalEventError(event, f"slot {worker.slot} is not in use")
    if worker.incarnation > record.worker.incarnation:
        raise IllegalEventError(event, f"incarnation {worker.incarnation} of slot {worker.slot} was never intended")
    if worker != record.worker:
        return f"worker {worker} was replaced by incarnation {record.worker.incarnation}"
    return f"worker {worker} has ended" if record.standing is Standing.ENDED else None
