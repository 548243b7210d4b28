"""Membership: `step(state, event) -> (state, effects)`, the one place where a job's fate is decided.

Theory of operation
-------------------
A job is a placement (the slots in use) with one *intended* worker per slot. The shell around this core (server.py)
turns every call, message and tick into an event, and carries out the effects; nothing here waits, knows the time or
fails.

                  all joined                    a worker fails, a host is lost,
    FORMING  ------------------->  RUNNING      somebody stops the job, the start times out:
             <-------------------               from either --->  DRAINING
               a member joins again                                  |  all have ended, or the deadline passed
               from either, when all have ended with 0  --------->  FINISHED

- forming.py   workers are started; those that call `init()` wait until all have. The last join publishes the next
               generation. A job in which nobody joins is one of plain programs: it goes from here to FINISHED.
- running.py   a generation is live. `shutdown()` and `init()` lead back to FORMING: a new generation of the same
               members.
- endings.py   what both have in common: exits, lost hosts, orders from outside. Once a worker has ended well there is
               no further generation: those that wait, and those that join later, are refused.
- draining.py  the outcome is decided by the first cause and never changes; whoever is left is ended.
- finished.py  late messages change nothing.

What holds throughout (the laws are in tests/rendezvous/core/test_laws.py):
- Orders follow from state against report (intent.py): a Launch or Terminate may be lost or repeated.
- An event about an incarnation that is not the intended one is stale, and changes nothing.
- An event that contradicts the state raises IllegalEventError and changes nothing.
- Generation numbers only grow; each is published once.

Today every loss after the first generation ends the job; a policy with failures allowed starts a worker again only
before that.
"""

from rendezvous.core import draining, finished, forming, running
from rendezvous.core.effects import Effect, Refuse
from rendezvous.core.errors import IllegalEventError
from rendezvous.core.events import Begun, Event, Exited, Joined, Lost, Reported, StoreOpened, Ticked
from rendezvous.core.leases import advance, hear
from rendezvous.core.model import Policy, Worker
from rendezvous.core.state import Phase, Standing, State

_HANDLERS = {
    Phase.FORMING: forming.handle,
    Phase.RUNNING: running.handle,
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
                raise IllegalEventError(event, f"host {host} is not in use")
            if isinstance(event, Reported):
                _refuse_strangers(event)
            if not isinstance(event, Lost):
                state = hear(state, host)
        case Joined(worker) | Exited(worker) | StoreOpened(worker):
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


def _refuse_future(state: State, event: Joined | Exited | StoreOpened) -> None:
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
