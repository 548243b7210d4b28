"""How many workers each host gets: mpirun's -map-by and --oversubscribe change the slots of the hosts. Pure.

The rendezvous fills the hosts in order. So neighbouring ranks share a host with every mapping, while `-map-by node` of
mpirun also assigns the ranks in turn.
"""

from collections.abc import Sequence
from enum import StrEnum

from rendezvous.core.model import Host


class MapBy(StrEnum):
    """How a job with fewer workers than slots uses the hosts."""

    SLOT = "slot"
    NODE = "node"


def map_workers(hosts: Sequence[Host], size: int, map_by: MapBy, *, oversubscribe: bool) -> tuple[Host, ...]:
    """The hosts with the slots that a job of `size` workers uses; unchanged if they are too few."""
    if oversubscribe:
        offered = raise_slots(hosts, size)
    else:
        offered = tuple(hosts)
    if map_by is MapBy.NODE:
        return spread(offered, size)
    return offered


def spread(hosts: Sequence[Host], size: int) -> tuple[Host, ...]:
    """Assign `size` workers, one to each host in turn while it has slots, and return the hosts with workers.

    The hosts are unchanged if their slots are too few.
    """
    if sum(host.slots for host in hosts) < size:
        return tuple(hosts)
    dealt = [0] * len(hosts)
    left = size
    while left > 0:
        takers = [index for index, host in enumerate(hosts) if dealt[index] < host.slots]
        fewest = min(hosts[index].slots - dealt[index] for index in takers)
        rounds = max(1, min(left // len(takers), fewest))
        for index in takers[:left]:
            dealt[index] += rounds
            left -= rounds
    return tuple(Host(host.name, count) for host, count in zip(hosts, dealt, strict=True) if count)


def take_slots(hosts: Sequence[Host], size: int) -> tuple[Host, ...]:
    """The first hosts that together have `size` slots, with these slots alone; all hosts while they have fewer."""
    taken: list[Host] = []
    for host in hosts:
        if (left := size - sum(each.slots for each in taken)) > 0:
            taken.append(Host(host.name, min(host.slots, left)))
    return tuple(taken)


def raise_slots(hosts: Sequence[Host], size: int) -> tuple[Host, ...]:
    """Add as many slots as `size` workers lack, evenly, the first hosts first."""
    missing = max(0, size - sum(host.slots for host in hosts))
    each, rest = divmod(missing, len(hosts))
    return tuple(Host(host.name, host.slots + each + (index < rest)) for index, host in enumerate(hosts))
