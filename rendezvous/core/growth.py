"""Growth: a resize is offered to those who train, and taken at their next commit.

Newcomers are started and connected to their agents while the others train. When none of them is on its way any more, or
the first has waited for some seconds, the members are told that they may take them in; likewise when members are to be
left out. An offer is repeated only when it would change something else, and withdrawn when it would change nothing.
Where the reset limit is reached nothing is offered: the job goes on as it is.
"""

from dataclasses import replace

from rendezvous.core.effects import Effect, OfferResize
from rendezvous.core.reports import Decision
from rendezvous.core.scheduling import compose
from rendezvous.core.state import Offer, Phase, State
from rendezvous.core.workers import Standing


def offer_resize(state: State) -> tuple[State, tuple[Effect, ...]]:
    """Tell the members of the newest generation what they would gain by forming anew, if that is news."""
    generation = state.generation
    if generation is None or state.phase is not Phase.RUNNING or not state.policy.is_elastic:
        return state, ()
    if state.refusal is not None or state.stops_at is not None or not state.may_form_anew:
        return state, ()
    survivors = state.survivors()
    if not all(record.has_state for record in survivors):
        return state, ()
    composition = compose(state, Decision.RESIZE, survivors)
    added = tuple(record.worker for record in composition.added)
    removed = tuple(record.worker for record in composition.removed)
    offer = Offer(state.offer.number + 1, added, removed)
    if (added, removed) == (state.offer.added, state.offer.removed):
        return (replace(state, gathering_since=None) if offer.is_empty else state), ()
    if not offer.is_empty:
        since = state.clock if state.gathering_since is None else state.gathering_since
        state = replace(state, gathering_since=since)
        is_gathered = not state.count(Standing.INTENDED)
        if not is_gathered and state.clock - since < state.policy.recovery.gathering_seconds:
            return state, ()
    effect = OfferResize(generation.number, offer.number, bool(added), bool(removed))
    return replace(state, offer=offer, gathering_since=None if offer.is_empty else state.gathering_since), (effect,)
