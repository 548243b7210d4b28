"""Which slots are used: hosts in the order given, each filled before the next."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rendezvous.core.errors import TooFewSlotsError
from rendezvous.core.model import Host, Slot


def place(hosts: Sequence[Host], min_size: int, max_size: int) -> tuple[Slot, ...]:
    """Choose up to `max_size` slots, all slots of a host before the next host's.

    Raises:
        TooFewSlotsError: the hosts offer fewer than `min_size` slots.
    """
    slots = tuple(islice(list_slots(hosts), max_size))
    if len(slots) < min_size:
        raise TooFewSlotsError(hosts, min_size)
    return slots


def list_slots(hosts: Iterable[Host]) -> Iterator[Slot]:
    """All slots of these hosts, in the order in which they are used."""
    return (Slot(host.name, index) for host in hosts for index in range(host.slots))
