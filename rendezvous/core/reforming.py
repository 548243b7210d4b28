"""Reforming: a generation was interrupted, and its survivors report; or too few are left, and wait for others.

When all have reported, the verdict is passed and the next generation published. Who does not report in time is given
up. With too few survivors newcomers are awaited, which have no report to give.
"""

from rendezvous.core import draining, endings
from rendezvous.core.effects import Effect
from rendezvous.core.events import Event, Joined, Ticked
from rendezvous.core.joining import join
from rendezvous.core.losses import lose_silent
from rendezvous.core.state import Standing, State
from rendezvous.core.timeouts import silent_hosts, watch_workers


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """React to what happens between an interruption and the next generation."""
    match event:
        case Joined():
            return join(state, event)
        case Ticked() if not silent_hosts(state):
            return _pass_time(state, event)
        case _:
            return endings.handle(state, event)


def _pass_time(state: State, event: Ticked) -> tuple[State, tuple[Effect, ...]]:
    if state.deadline is not None and state.now > state.deadline and (late := state.standing(Standing.MEMBER)):
        return lose_silent(state, late, state.policy.report_seconds)
    outcome = watch_workers(state, state.waiting + state.count(Standing.READY))
    if outcome is not None:
        return draining.enter(state, outcome)
    return endings.handle(state, event)
