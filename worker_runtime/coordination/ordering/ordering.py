"""The sequencer's rules: which operation runs next, and which is refused, and why.

**Order.** Each rank sends requests in any order. A *pending operation* collects the requests of a set's members under
one name. When the last member has asked, and all signatures and factors are equal, the operation gets the next index,
counted over all sets, and is released. Every rank runs its releases by index, so overlapping sets cannot cross. If
signatures or factors differ, all ranks that asked get the difference. A rank has at most one pending request of a name,
and an operation is answered when all members have asked; so the members' n-th operations of a name are matched without
numbers. A call that fails on its rank requests FAIL under its name, with the error as its note. The operation is then
refused on all ranks with this error, and the counts of operations stay equal.

**Join.** A rank that requests JOIN is joined until all ranks have requested it. A joined member that has not asked
counts as asking if the operation tolerates that; otherwise the operation is refused. Requests from before the JOIN
count as usual, and none follows. So whether a member takes part in the n-th operation since the last join does not
depend on the order of messages. When all have joined, nothing else is pending.

**Leaving and loss.** When a rank leaves, all pending and later operations of its sets are refused. A rank whose
connection ended without an explanation has *vanished*: its requests are dropped, and operations that need it wait for
the explanation. The loss of a rank is one Failure; after it, no call has a response or raises an error.

**Deadlocks.** A rank reports that it is *blocked* when its only thread has waited for a request for a second. When
each rank has left, has joined, or is blocked in a pending request, no rank can submit more: all pending operations are
refused. A JOIN is not: it ends when the other ranks, which continue, join or leave.

In the steady state, a request with a known signature costs a few look-ups. Each rare case is one test at the beginning
that leads to another method.
"""

from dataclasses import dataclass

from worker_runtime.coordination.ordering.pending import OF_THE_JOB, Pending, SetOperations, have_meaning
from worker_runtime.coordination.ordering.refusals import (
    explain_deadlock,
    explain_join,
    explain_removal,
    explain_shutdown,
    find_mismatch,
)
from worker_runtime.coordination.ordering.requests import (
    GLOBAL_SET,
    Failure,
    Kind,
    Refusal,
    Release,
    Request,
    Response,
)

JOIN_NAME = "join"


class IllegalRequestError(ValueError):
    """A request that no correct worker sends. The state is unchanged."""


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """A summary of a pending operation, for warnings.

    request: the request of the rank that asked first.
    asked: the ranks that have asked it, in order, without those whose call has failed.
    missing: the ranks that have not asked, joined or failed.
    number: numbers the operations in the order of their first requests; two operations of one name have two numbers.
    """

    request: Request
    asked: tuple[int, ...]
    missing: tuple[int, ...]
    number: int = 0


class Ordering:
    """The order of one generation's operations. Initially there is process set 0, of all ranks.

    Args:
        size: the number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._sets = {GLOBAL_SET: SetOperations(tuple(range(size)))}
        self._removed: set[int] = set()  # the numbers of removed sets; some are taken again
        self._next_index = 0
        self._next_number = 0
        self._joined: set[int] = set()
        self._left: dict[int, str] = {}  # how each rank has left
        self._failures: dict[int, Request] = {}  # of these, FAILs that not all members have received
        self._blocked: dict[int, Pending] = {}  # the operation that each blocked rank waits for
        self._is_lost = False

    def ask(self, rank: int, request: Request, sizes: tuple[int, ...] = ()) -> list[Response]:
        """Process a rank's request; return the responses, with releases in the order of their indices.

        Raises:
            IllegalRequestError: the set never existed; the rank is not in it or has left; the rank has a pending
                request of this name; the sizes are invalid; or a JOIN, ADD_SET or REMOVE_SET is not of set 0.
        """
        of_set = self._sets.get(request.process_set)
        if of_set is None or of_set.is_closed or rank not in of_set.ranks:
            return self._turn_away(rank, request, of_set)
        _, name, signature, _ = request
        if sizes or signature.kind in OF_THE_JOB or name == JOIN_NAME:
            self._check(rank, request, sizes)
        if self._blocked:
            self._blocked.pop(rank, None)

        operation = of_set.pending.get(name)
        if operation is None:
            operation = of_set.pending[name] = Pending(self._next_number, request, of_set.members, {}, {})
            self._next_number += 1
        elif rank in operation.asked:
            raise IllegalRequestError(f"rank {rank} has requested {name} of process set {request.process_set} already")
        elif request.factors != operation.request.factors or (
            signature is not operation.request.signature and signature != operation.request.signature
        ):
            operation.is_mixed = True

        operation.asked[rank] = request
        if sizes:
            operation.sizes[rank] = sizes
        if signature.kind is Kind.JOIN:
            return self._join(rank)
        if len(operation.asked) == of_set.size:
            return self._conclude(operation, ())
        return self._settle(operation) if self._joined else []

    def block(self, rank: int, process_set: int, name: str) -> list[Response]:
        """Note that a rank is blocked in a request; ignored if it is not pending, since its response is on the way."""
        of_set = self._sets.get(process_set)
        operation = None
        if of_set is not None:
            operation = of_set.pending.get(name)
        if operation is None or rank not in operation.asked or rank in self._joined:
            return []
        self._blocked[rank] = operation
        return self._unlock()

    def unblock(self, rank: int) -> None:
        """Note that a rank is no longer blocked."""
        self._blocked.pop(rank, None)

    def leave(self, rank: int, how: str = "") -> list[Response]:
        """Process that a rank has left.

        Args:
            rank: the rank.
            how: how its process has ended, as in "ended without an error"; "" if it has only called `shutdown()`.

        Raises:
            IllegalRequestError: the rank does not exist.
        """
        self._check_rank(rank)
        if self._is_lost or rank in self._left:
            return []
        self._left[rank] = how

        needing = [operation for operation in self._list_pending() if rank in operation.members]
        for operation in needing:
            self._withdraw(operation, rank)
        responses: list[Response] = [
            self._refuse(operation, explain_shutdown(operation.request, {rank: how}, self._failures))
            for operation in needing
            if operation.asked
        ]

        for of_set in self._sets.values():
            if rank in of_set.ranks:
                of_set.left.append(rank)
                of_set.close()
        self._blocked.pop(rank, None)
        self._joined.clear()  # the JOIN was pending in set 0, of which every rank is a member
        return responses + self._unlock()

    def vanish(self, rank: int) -> None:
        """Process the end of a rank before it is known whether it has left or is lost; until then the others wait.

        Raises:
            IllegalRequestError: the rank does not exist.
        """
        self._check_rank(rank)
        if self._is_lost or rank in self._left:
            return
        for operation in self._list_pending():
            if self._withdraw(operation, rank) and not operation.asked:
                self._end(operation)
        self._joined.discard(rank)
        self._blocked.pop(rank, None)

    def lose(self, rank: int, how: str) -> list[Response]:
        """Process the loss of a rank, unless it has left: nothing more is released, and nothing is pending.

        Args:
            rank: the rank.
            how: how it was lost: "was cut off: its connection was closed".

        Raises:
            IllegalRequestError: the rank does not exist.
        """
        self._check_rank(rank)
        if self._is_lost or rank in self._left:
            return []
        self._is_lost = True
        for of_set in self._sets.values():
            of_set.close()
        self._blocked.clear()
        self._joined.clear()
        return [Failure(f"rank {rank} {how}")]

    @property
    def next_index(self) -> int:
        """The index of the next release."""
        return self._next_index

    def find_pending(self) -> list[PendingSummary]:
        """The operations that some rank waits for, oldest first."""
        found = []
        for operation in self._list_pending():
            asked = [rank for rank, request in operation.asked.items() if request.signature.kind is not Kind.FAIL]
            if asked:
                missing = tuple(rank for rank in operation.find_absent() if rank not in self._joined)
                found.append(PendingSummary(operation.asked[asked[0]], tuple(sorted(asked)), missing, operation.number))
        return found

    def find_blocked(self) -> tuple[int, ...]:
        """The ranks that have said that they wait for a pending operation, in order."""
        return tuple(sorted(self._blocked))

    def find_members(self, process_set: int) -> tuple[int, ...] | None:
        """The ranks of a process set, in order; None if it does not exist."""
        of_set = self._sets.get(process_set)
        if of_set is None:
            return None
        return of_set.members

    def _withdraw(self, operation: Pending, rank: int) -> bool:
        """Take back what a rank that is gone has asked; whether it had asked."""
        operation.sizes.pop(rank, None)
        request = operation.asked.pop(rank, None)
        if request is not None and request.signature.kind is Kind.FAIL:
            self._failures.setdefault(rank, request)
        return request is not None

    def _turn_away(self, rank: int, request: Request, of_set: SetOperations | None) -> list[Response]:
        """Answer a request that can never be released."""
        if self._is_lost:
            return []
        number = request.process_set
        if rank in self._left:
            raise IllegalRequestError(f"rank {rank} has left, and requests {request.name}")
        if of_set is None and number in self._removed and 0 <= rank < self._size:
            return [Refusal(number, request.name, (rank,), explain_removal(request, number))]
        if of_set is None:
            raise IllegalRequestError(f"there is no process set {number}, of which rank {rank} requests {request.name}")
        if rank not in of_set.ranks:
            raise IllegalRequestError(f"rank {rank} is no member of process set {number}, and requests {request.name}")
        left = {member: self._left[member] for member in of_set.left}
        return [Refusal(number, request.name, (rank,), explain_shutdown(request, left, self._failures))]

    def _check(self, rank: int, request: Request, sizes: tuple[int, ...]) -> None:
        """Check a request that is not of the common form."""
        kind = request.signature.kind
        meant = f"rank {rank} requests {request.name} of process set {request.process_set}"
        if kind in OF_THE_JOB and request.process_set != GLOBAL_SET:
            raise IllegalRequestError(f"{meant}: {kind.name} belongs to set {GLOBAL_SET}")
        if request.process_set == GLOBAL_SET and (kind is Kind.JOIN) != (request.name == JOIN_NAME):
            raise IllegalRequestError(f"{meant}: the name of a JOIN, and of nothing else, is {JOIN_NAME}")
        numbers = self._removed | self._sets.keys() - {GLOBAL_SET}
        if not have_meaning(kind, sizes, self._size, numbers):
            raise IllegalRequestError(f"{meant} with the sizes {sizes}, which mean nothing there")

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise IllegalRequestError(f"there is no rank {rank} among {self._size}")

    def _join(self, rank: int) -> list[Response]:
        """Note a rank as joined, answer the operations that waited for it, and release the JOIN of the last rank."""
        self._joined.add(rank)
        self._blocked.pop(rank, None)
        responses: list[Response] = []
        for operation in self._list_pending():
            if rank in operation.members and rank not in operation.asked:
                responses += self._settle(operation)
        join = self._sets[GLOBAL_SET].pending[JOIN_NAME]
        if len(self._joined) < self._size:
            return responses + self._unlock()
        self._joined.clear()
        return responses + self._release(join, (), rank)

    def _settle(self, operation: Pending) -> list[Response]:
        """Answer an operation if all absent members have joined."""
        absent = operation.find_absent()
        if self._joined.issuperset(absent):
            return self._conclude(operation, tuple(absent))
        return []

    def _conclude(self, operation: Pending, joined: tuple[int, ...]) -> list[Response]:
        """Answer an operation for which all members have asked or joined."""
        kind = operation.request.signature.kind
        if (operation.is_mixed or operation.sizes or kind is Kind.FAIL) and (
            reason := find_mismatch(operation.asked, operation.sizes)
        ) is not None:
            return [self._refuse(operation, reason)]
        if joined and (request := operation.find_intolerant()) is not None:
            return [self._refuse(operation, explain_join(request, joined))]
        if kind is Kind.ADD_SET:
            return self._add_set(operation)
        if kind is Kind.REMOVE_SET:
            return self._remove_set(operation)
        return self._release(operation, joined)

    def _add_set(self, operation: Pending) -> list[Response]:
        wanted = operation.request.signature.root
        if wanted is None or wanted in self._sets:
            number = next(number for number in range(1, len(self._sets) + 1) if number not in self._sets)
        else:
            number = wanted
        self._sets[number] = SetOperations(operation.sizes[operation.members[0]])
        return self._release(operation, (), number)

    def _remove_set(self, operation: Pending) -> list[Response]:
        """Remove a set, if it still exists, and refuse its pending operations."""
        (number,) = operation.sizes[operation.members[0]]
        if number not in self._sets:
            return [self._refuse(operation, explain_removal(operation.request, number))]
        pending = list(self._sets[number].pending.values())
        refusals = [self._refuse(other, explain_removal(other.request, number)) for other in pending]
        del self._sets[number]
        self._removed.add(number)
        return [*self._release(operation, ()), *refusals]

    def _release(self, operation: Pending, joined: tuple[int, ...], value: int = 0) -> list[Response]:
        self._end(operation)
        index = self._next_index
        self._next_index += 1
        if operation.sizes:
            sizes = operation.collect_sizes()
        else:
            sizes = ()
        return [Release(index, operation.request, operation.members, joined, sizes, value)]

    def _refuse(self, operation: Pending, reason: str, *, is_deadlock: bool = False) -> Refusal:
        self._end(operation)
        request = operation.request
        return Refusal(request.process_set, request.name, tuple(sorted(operation.asked)), reason, is_deadlock)

    def _end(self, operation: Pending) -> None:
        """Remove an operation from the pending ones."""
        process_set, name, _, _ = operation.request
        del self._sets[process_set].pending[name]
        if self._blocked:
            self._blocked = {rank: other for rank, other in self._blocked.items() if other is not operation}

    def _unlock(self) -> list[Response]:
        """If no rank can ask, refuse all pending operations except a JOIN."""
        blocked = self._blocked
        if not blocked or len(blocked) + len(self._joined) + len(self._left) < self._size:
            return []
        reason = explain_deadlock({rank: operation.request for rank, operation in blocked.items()}, self._joined)
        pending = [operation for operation in self._list_pending() if operation.request.signature.kind is not Kind.JOIN]
        return [self._refuse(operation, reason, is_deadlock=True) for operation in pending]

    def _list_pending(self) -> list[Pending]:
        """All pending operations, oldest first."""
        pending = [operation for of_set in self._sets.values() for operation in of_set.pending.values()]
        return sorted(pending, key=lambda operation: operation.number)
