"""What ranks wait for, each with its only thread: who can do nothing more until somebody else asks.

A rank tells twice that it waits. First it is *idle*, after milliseconds: when all are, those that are missed are told
that they are wanted, since a rank may have something ready that it meant to ask later. An optimizer is so: where one
rank steps before another operation and one after it, the gradients of both are there. What comes then is no guess, as
it would be without a rank that waits for just this.

After a second a rank is *blocked*. When all are, nobody can ask any more: a deadlock.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from worker_runtime.coordination.ordering.questions import Wanted
from worker_runtime.coordination.ordering.uses import Use


@dataclass(slots=True)
class Waits:
    """By rank, the use that it waits for; it is pending, and the rank has asked it.

    idle: also those that are blocked.
    """

    idle: dict[int, Use] = field(default_factory=dict)
    blocked: dict[int, Use] = field(default_factory=dict)

    def begin(self, rank: int, use: Use, *, is_blocked: bool) -> None:
        """A rank waits."""
        self.idle[rank] = use
        if is_blocked:
            self.blocked[rank] = use

    def end(self, use: Use) -> None:
        """It has its answer."""
        for rank in [rank for rank in use.asked if self.idle.get(rank) is use]:
            self.stop(rank)

    def stop(self, rank: int) -> None:
        """A rank waits no longer."""
        self.idle.pop(rank, None)
        self.blocked.pop(rank, None)

    def clear(self) -> None:
        """Nobody waits."""
        self.idle.clear()
        self.blocked.clear()

    def call_for_help(self, joined: AbstractSet[int]) -> list[Wanted]:
        """All wait: tell each rank once what it is missed in, oldest first."""
        wanted = []
        for use in list_oldest_first(self.idle):
            if not use.is_wanted:
                use.is_wanted = True
                question = use.question
                absent = [rank for rank in use.find_absent() if rank not in joined]
                call = question.process_set, question.name, question.signature.note
                wanted += [Wanted(rank, *call) for rank in absent]
        return wanted


def list_oldest_first(waits: dict[int, Use]) -> list[Use]:
    """What is waited for, each once."""
    return sorted({use.number: use for use in waits.values()}.values(), key=lambda use: use.number)
