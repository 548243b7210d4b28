"""Stop notices: a host, or the whole job, is to end soon, and has the grace to do so well.

A notice for a host of an elastic job drains that host: its slots are not offered any more, so its members leave at the
next commit, as those of a host that is not listed any more, and its agent is let go. Whoever is still there when the
grace is over is ended, and the others go on where they stand. None of that is a failure. The host is offered again
after its grace and a cooldown, or when the list of hosts has been without it.

A static job cannot go on without a host, nor can a job of which nobody else is left: there a notice is for the whole
job. Its workers learn of it, all at the same step, save what they need and end with TEMPORARY_FAILURE, which then is no
failure either. With too few left for --min-np the job waits for hosts, as it does after a loss.
"""

from dataclasses import replace

from rendezvous.core import draining
from rendezvous.core.effects import Effect, Notify, OfferResize
from rendezvous.core.losses import interrupt
from rendezvous.core.outcome import conclude, end_as_noticed, overrun_notice
from rendezvous.core.publication import chain, move_on
from rendezvous.core.scheduling import retire
from rendezvous.core.state import Offer, Phase, Standing, State, WorkerRecord

_GOING = frozenset({Standing.LEAVING, Standing.ENDED})


def heed(state: State, host: str | None) -> tuple[State, tuple[Effect, ...]]:
    """A notice has come: for a host, or (None) for the job. One that came before changes nothing."""
    if state.stops_at is not None or (host is not None and (host in state.drained or host not in state.hosts)):
        return state, ()
    if host is None:
        return _stop(state, "a stop notice came (SIGUSR2)")
    if not state.policy.is_elastic:
        return _stop(state, f"a stop notice came to host {host}")
    drained = state.with_drained({**state.drained, host: state.clock + state.policy.grace_seconds})
    if not _can_go_on(drained):
        return _stop(state, f"a stop notice came to host {host}, and without it nobody is left")
    drained, effects = move_on(drained)
    return drained, (Notify(host, f"host {host} got a stop notice: the job goes on without it"), *effects)


def pass_time(state: State) -> tuple[State, tuple[Effect, ...]]:
    """End what has outrun its notice; offer the hosts again whose notices lie far enough back."""
    if state.stops_at is not None:
        if not state.alive():
            return draining.enter(state, conclude(state.cause, has_stopped=True))
        if state.clock <= state.stops_at:
            return state, ()
        late = state.alive()[0].worker
        return draining.enter(state, overrun_notice(late, state.rank_of(late), state.policy.grace_seconds))
    for host, leaves_by in state.drained.items():
        if state.clock > leaves_by and host in state.hosts:
            if late_here := [record for record in state.on(host) if record.standing not in _GOING]:
                return _leave(state, host, late_here)
        elif state.clock > leaves_by + state.policy.recovery.cooldown_seconds[0]:
            others = {other: when for other, when in state.drained.items() if other != host}
            return move_on(state.with_drained(others))
    return state, ()


def _can_go_on(state: State) -> bool:
    """Somebody is left who trains; before the first generation, a host that may be used."""
    if not state.number:
        return bool(state.offered)
    return any(record.worker.slot.host not in state.drained for record in state.survivors())


def _stop(state: State, why: str) -> tuple[State, tuple[Effect, ...]]:
    """The whole job is to end. Nobody comes or goes until then."""
    if not state.alive():
        return draining.enter(state, end_as_noticed())
    grace_seconds = state.policy.grace_seconds
    sentence = f"{why}: the workers have {grace_seconds:g} s (--grace) to save what they need and to end"
    effects: tuple[Effect, ...] = (Notify(None, sentence),)
    if not state.offer.is_empty and state.phase is Phase.RUNNING:
        number = state.offer.number + 1
        state = replace(state, offer=Offer(number))
        effects += (OfferResize(state.number, number, adds=False, removes=False),)
    return replace(state, stops_at=state.clock + grace_seconds, is_settled=False), effects


def _leave(state: State, host: str, records: list[WorkerRecord]) -> tuple[State, tuple[Effect, ...]]:
    """These are still on a host that goes away now; the step that they are in is run again without them."""
    reason = f"host {host} got a stop notice {state.policy.grace_seconds:g} s ago (--grace)"
    members = {record.worker for record in state.survivors()}
    state, effects = retire(state, records, reason)
    if not any(record.worker in members for record in records):
        state, more = move_on(state)
    elif not state.survivors():
        late = records[0].worker
        state, more = draining.enter(state, overrun_notice(late, state.rank_of(late), state.policy.grace_seconds))
    else:
        state, more = chain(state, lambda state: interrupt(state, reason), move_on)
    return state, (*effects, *more)
