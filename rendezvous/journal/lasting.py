"""What of a state lasts: not what each tick and each heartbeat changes, so that a quiet job writes nothing.

A server that is started again has not heard the clock tick, and gives each agent that had reported a whole lease. The
job's clock has stood still since the last decision that was written.
"""

from dataclasses import dataclass, fields, replace
from operator import attrgetter, is_
from typing import Self

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


@dataclass(frozen=True, slots=True)
class Lasting:
    """A state, and what of it lasts. Later ones share with it what is the same: few hosts are looked at, of thousands.

    state: with which a server runs.
    part: of it that lasts.
    """

    state: State
    part: State

    @classmethod
    def of(cls, state: State) -> Self:
        """What lasts of a first state."""
        heard = Table.of((host, None if when is None else _HEARD) for host, when in state.last_heard.items())
        return cls(state, _reduce(state, heard))

    def follow(self, state: State) -> Self:
        """What lasts of a later state."""
        if not state.last_heard.has_keys_of(self.state.last_heard):
            return self.of(state)
        heard = self.part.last_heard
        for host, when in state.last_heard.list_changes(self.state.last_heard):
            if (when is None) != (heard[host] is None):
                heard = heard.replace(host, None if when is None else _HEARD)
        return type(self)(state, _reduce(state, heard))


def _reduce(state: State, heard: Table[str, float | None]) -> State:
    return replace(state, has_ticked=False, settled_until=0.0, last_heard=heard)


def resume(state: State) -> State:
    """The state with which a server starts, from one that was reduced."""
    heard = Table.of((host, None if when is None else state.now) for host, when in state.last_heard.items())
    return replace(state, last_heard=heard)
