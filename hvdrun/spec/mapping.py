"""How many workers each host gets: mpirun's -map-by and --oversubscribe, as the slots that the hosts offer. Pure.

The core fills hosts in the order given, so all that mapping can say is said by the number of slots. That is also why
neighbouring ranks share a host whatever the mapping: mpirun's `-map-by node` deals the ranks out like cards, here only
their number per host is what the dealing gives.
"""

from collections.abc import Sequence
from enum import StrEnum

from rendezvous.core.model import Host


class MapBy(StrEnum):
    """In which way a job of fewer workers than slots uses the hosts."""

    SLOT = "slot"
    NODE = "node"


def map_workers(hosts: Sequence[Host], size: int, map_by: MapBy, *, oversubscribe: bool) -> tuple[Host, ...]:
    """The hosts with the slots that a job of `size` workers is to use; as given where they are too few."""
    offered = raise_slots(hosts, size) if oversubscribe else tuple(hosts)
    return spread(offered, size) if map_by is MapBy.NODE else offered


def spread(hosts: Sequence[Host], size: int) -> tuple[Host, ...]:
    """Deal `size` workers out, one to each host in turn, for as long as it has slots; the hosts that got any.

    Where the slots are too few the hosts come back as they are.
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


def raise_slots(hosts: Sequence[Host], size: int) -> tuple[Host, ...]:
    """Add as many slots as `size` workers lack, evenly, the first hosts first."""
    missing = max(0, size - sum(host.slots for host in hosts))
    each, rest = divmod(missing, len(hosts))
    return tuple(Host(host.name, host.slots + each + (index < rest)) for index, host in enumerate(hosts))
