"""What of a state lasts: not what each tick and each heartbeat changes, so that a quiet job writes nothing.

A server that is started again has not heard the clock tick, and gives each agent that had reported a whole lease. The
job's clock has stood still since the last decision that was written.
"""

from dataclasses import fields, replace
from operator import attrgetter, is_

from rendezvous.core.state import State
from rendezvous.core.table import Table

_MOMENTARY = frozenset({"now", "has_ticked", "settled_until", "last_heard"})
_read_lasting = attrgetter(*(field.name for field in fields(State) if field.name not in _MOMENTARY))
_HEARD = 0.0


def is_quiet(former: State, new: State) -> bool:
    """Nothing was decided from one state to a later one, as far as that is seen at a glance."""
    if not all(map(is_, _read_lasting(former), _read_lasting(new))):
        return False
    if not new.last_heard.has_keys_of(former.last_heard):
        return False
    changes = new.last_heard.list_changes(former.last_heard)
    return all((heard is None) == (former.last_heard[host] is None) for host, heard in changes)


def reduce_to_lasting(state: State, former: State | None = None) -> State:
    """What of a state lasts; it shares with the former one, which was reduced too, what is the same."""
    heard = Table.of((host, None if when is None else _HEARD) for host, when in state.last_heard.items())
    if former is not None and heard.has_keys_of(former.last_heard) and not heard.list_changes(former.last_heard):
        heard = former.last_heard
    return replace(state, has_ticked=False, settled_until=0.0, last_heard=heard)


def resume(state: State) -> State:
    """The state with which a server starts, from one that was reduced."""
    heard = Table.of((host, None if when is None else state.now) for host, when in state.last_heard.items())
    return replace(state, last_heard=heard)
