"""Forming: workers are being started, or some wait in `init()`, or to begin again, until all the others have come."""

from rendezvous.core import draining, endings
from rendezvous.core.effects import Effect
from rendezvous.core.events import Event, HostsChanged, Joined, Ticked
from rendezvous.core.joining import join
from rendezvous.core.losses import lose_silent
from rendezvous.core.outcome import time_out
from rendezvous.core.publication import publish_first
from rendezvous.core.reports import Wish
from rendezvous.core.scheduling import place
from rendezvous.core.state import Standing, State
from rendezvous.core.timeouts import (
    explain_overdue_start,
    find_missing,
    silent_hosts,
    start_is_overdue,
    unheard_hosts,
    watch_start,
)


def handle(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """React to what happens until every worker has joined."""
    match event:
        case HostsChanged(hosts) if not state.workers and not state.policy.is_elastic:
            place(hosts, state.policy.min_size, state.policy.max_size)  # or raise
            return endings.handle(state, event)
        case Joined():
            return join(state, event)
        case Ticked() if not silent_hosts(state):
            return _pass_time(state, event)
        case _:
            return endings.handle(state, event)


def _pass_time(state: State, event: Ticked) -> tuple[State, tuple[Effect, ...]]:
    if not state.policy.is_elastic:
        reason = explain_overdue_start(state)
        return endings.handle(state, event) if reason is None else _end_start(state, reason)
    if state.number:
        return _look_for_stragglers(state, event)
    state, outcome = watch_start(state)
    if outcome is not None:
        return draining.enter(state, outcome)
    if start_is_overdue(state, state.waiting_since):
        if state.waiting >= state.policy.min_size:
            return publish_first(state)
        if (reason := explain_overdue_start(state)) is not None:
            return _end_start(state, reason)
    return endings.handle(state, event)


def _end_start(state: State, reason: str) -> tuple[State, tuple[Effect, ...]]:
    stuck = () if unheard_hosts(state) else find_missing(state)  # where nothing is heard of a host, all may be well
    return draining.enter(state, time_out(reason), stuck=stuck)


def _look_for_stragglers(state: State, event: Ticked) -> tuple[State, tuple[Effect, ...]]:
    """Members who begin again at a commit come at once, all of them; those who call `init()` again, when they like."""
    waiting = state.standing(Standing.WAITING)
    if any(record.report is not None and record.report.wish is Wish.BEGIN for record in waiting):
        reason = explain_overdue_start(state) if start_is_overdue(state, state.waiting_since) else None
        return endings.handle(state, event) if reason is None else _end_start(state, reason)
    limit_seconds = state.policy.report_seconds
    if state.waiting_since is not None and state.now - state.waiting_since > limit_seconds:
        return lose_silent(state, state.standing(Standing.MEMBER), limit_seconds)
    return endings.handle(state, event)
