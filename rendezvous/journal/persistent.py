"""The persistent part of a state, without what each tick and each heartbeat changes: a quiet job writes nothing.

A server that is started again gives a whole lease to each agent that had reported. The job's clock has stood still
since the last decision that was written.
"""

from dataclasses import dataclass, fields, replace
from operator import attrgetter, is_
from typing import Self

from rendezvous.core.state import State
from rendezvous.core.table import Table

_VOLATILE = frozenset({"now", "has_ticked", "settled_until", "last_heard"})
_read_persistent = attrgetter(*(field.name for field in fields(State) if field.name not in _VOLATILE))
_HEARD = 0.0


def is_quiet(former: State, new: State) -> bool:
    """Nothing was decided from one state to a later one, as far as a cheap comparison tells."""
    if not all(map(is_, _read_persistent(former), _read_persistent(new))):
        return False
    if not new.last_heard.has_keys_of(former.last_heard):
        return False
    changes = new.last_heard.list_changes(former.last_heard)
    return all((heard is None) == (former.last_heard[host] is None) for host, heard in changes)


@dataclass(frozen=True, slots=True)
class PersistentState:
    """A state and its persistent part. Later ones share what is the same: few hosts are looked at, of thousands.

    state: the whole one.
    part: the same without what is volatile.
    """

    state: State
    part: State

    @classmethod
    def of(cls, state: State) -> Self:
        """The persistent part of a first state."""
        heard = Table.of((host, None if when is None else _HEARD) for host, when in state.last_heard.items())
        return cls(state, _reduce(state, heard))

    def follow(self, state: State) -> Self:
        """The persistent part of a later state."""
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
    """The state with which a server starts, from a persistent part."""
    heard = Table.of((host, None if when is None else state.now) for host, when in state.last_heard.items())
    return replace(state, last_heard=heard)
