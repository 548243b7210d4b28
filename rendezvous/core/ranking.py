"""Which numbers each member of a generation has."""

from collections import Counter
from collections.abc import Sequence

from rendezvous.core.model import Assignment, Slot


def rank(members: Sequence[Slot]) -> tuple[Assignment, ...]:
    """Number the members in the order given: rank is the position, the other numbers follow from the hosts.

    local_rank counts the members on the same host in rank order. cross_rank counts, in rank order, the members of
    equal local_rank on different hosts, so cross_size is the number of hosts that have that local rank (it differs
    between local ranks when the hosts hold unequally many members).
    """
    local_sizes = Counter(slot.host for slot in members)
    locals_seen: Counter[str] = Counter()
    crosses_seen: Counter[int] = Counter()
    positions = []
    for slot in members:
        local_rank = locals_seen[slot.host]
        positions.append((local_rank, crosses_seen[local_rank]))
        locals_seen[slot.host] += 1
        crosses_seen[local_rank] += 1
    return tuple(
        Assignment(
            rank=position,
            size=len(members),
            local_rank=local_rank,
            local_size=local_sizes[slot.host],
            cross_rank=cross_rank,
            cross_size=crosses_seen[local_rank],
        )
        for position, (slot, (local_rank, cross_rank)) in enumerate(zip(members, positions, strict=True))
    )
