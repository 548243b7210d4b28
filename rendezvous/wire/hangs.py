"""The orders and messages about where workers are, and about ranks that hold up the others; see `orders`."""

from dataclasses import dataclass

from rendezvous.core.model import Worker
from rendezvous.wire import Filled


@dataclass(frozen=True, slots=True)
class AskStacks:
    """Report where the workers of this host are.

    number: comes back in the answer.
    native: with frames of C and C++, as far as the host has what reads them.
    """

    number: int
    native: bool = False


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Kill this worker, which holds up the others: it counts as failed, for this reason."""

    worker: Worker
    reason: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """Where the workers of a host are, as JSON, in answer to AskStacks."""

    number: int
    stacks: Filled[str]


@dataclass(frozen=True, slots=True)
class WaitsReported:
    """For whom the ranks wait, as the sequencer on this host sees it: `rendezvous.wire.waits.Waits` as JSON."""

    waits: Filled[str]
