"""What the ranks find out about each other's gradients before they are reduced, in one small operation.

It costs a round trip, so an optimizer makes it in its first steps, and whenever what was found may have changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker_runtime.collectives import Allreduce, Combination, Reduction
from worker_runtime.coordination.operation import Handle
from worker_runtime.reduction.bucket import Entry
from worker_runtime.reduction.communicator import Communicator


@dataclass(frozen=True, slots=True)
class Negotiation:
    """What holds on all ranks alike.

    calm: for how many steps, on the rank where it is least, no complete gradients were thrown away; negative for some
        time after that has happened.
    order: the entries, in the order in which they became ready on the first rank.
    sparse_dims: of each entry, how many sparse dimensions its gradient has where it is sparse; 0 if nowhere.
    is_of_all: no rank had joined: all know this.
    """

    calm: int
    order: tuple[int, ...]
    sparse_dims: tuple[int, ...]
    is_of_all: bool


PLAN = "allreduce.{}.plan"  # the operation's name, but for the optimizer's


def ask_negotiation(
    comm: Communicator, entries: Sequence[Entry], ready: Sequence[Entry], calm: int, note: str
) -> Handle[list[torch.Tensor]]:
    """Ask what all ranks have; see `read_negotiation`.

    Args:
        comm: among whom.
        entries: of all gradients.
        ready: those that are complete, in the order in which they became so.
        calm: of this rank; see `Negotiation`.
        note: what all ranks must have alike.
    """
    places = dict.fromkeys(entries, 0)
    if comm.is_first:
        places.update((entry, place) for place, entry in enumerate(ready, 1) if entry in places)
    sparse = [entry.find_sparse_dims() for entry in entries]
    # All by the maximum: what only one rank knows, the others leave at zero.
    findings = torch.tensor([-calm, *places.values(), *sparse], dtype=torch.int64, device="cpu")
    operation = Allreduce([findings], Combination(Reduction.MAX), comm.members, PLAN.format(comm.name))
    operation.is_of_step = True
    operation.question = operation.question.add_note(note)
    return comm.engine.submit(operation, is_awaited=True)


def read_negotiation(comm: Communicator, handle: Handle[list[torch.Tensor]], count: int) -> Negotiation:
    """Wait for what `ask_negotiation` has asked.

    Args:
        comm: among whom.
        handle: of the negotiation.
        count: of the entries.

    Raises:
        HorovodInternalError: the ranks have not the same gradients, or the operation failed.
    """
    (found,) = comm.engine.wait(handle)
    negative_calm, *numbers = found.tolist()
    order = sorted(range(count), key=lambda index: (numbers[index] or count + 1, -index))
    terms = handle.terms
    return Negotiation(-negative_calm, tuple(order), tuple(numbers[count:]), terms is not None and not terms.joined)
