"""The sequencer's rules: which operation runs next, which never will, and why.

**How it works.** Each rank asks for what it has ready, in whatever order. A *use* of a name collects the questions of a
set's members; when the last of them has asked, all signatures and factors equal, it gets the next index, counted over
all sets, and is released; every rank runs its releases by index, so sets that overlap cannot cross. Where they differ,
all who asked are told how. A rank has one pending question of a name at most, so the members' n-th uses of a name meet
without being numbered, as long as no use is answered to some and not to others: whoever has not asked for a use that is
refused is *owed* the refusal, and gets it for its next question of that name (`uses.py`). A call that fails on its rank
before it asks is *given up*: the others are refused it, and all are in step.

**Join.** A rank that asks JOIN is joined until all have. A member that has joined and not asked counts as asking, where
the operation tolerates that; where not, the use is refused at once. What it asked before it joined counts as it is. It
is owed nothing: what it has not asked by then it will not ask. So whether a member takes part in the n-th use since the
last join does not depend on which message came first. When all have joined nothing else is pending.

**Leaving and loss.** When a rank has left, all that is pending in its sets is refused, what it had asked itself
included, and so is whatever is asked there later. One whose end is still to be explained has *vanished*: what it had
asked does not count any more, and what needs it waits for the explanation. When one is lost there is one Failure; every
later call answers nothing, and illegal ones raise no more.

**Deadlocks.** Two threads of two ranks that wait for each other's operations would wait for ever. When each rank that
has not left has joined, or waits with its only thread for a question that is pending, nobody can ask any more, unless
somebody has something ready (`waits.py`): all that they wait for is refused. A JOIN is not: it ends when the others,
who go on, join or leave.

The steady state, a question with a known signature, costs a few look-ups: what is rare is looked at first by one test
each, and moves aside.

Long because each rule reads and changes the same few facts, and is to be read beside the others.
"""

from dataclasses import dataclass

from worker_runtime.coordination.ordering.mismatches import find_mismatch
from worker_runtime.coordination.ordering.questions import (
    GLOBAL_SET,
    Answer,
    Failure,
    Kind,
    Question,
    Refusal,
    Release,
    Restart,
)
from worker_runtime.coordination.ordering.refusals import (
    explain_deadlock,
    explain_given_up,
    explain_join,
    explain_removal,
    explain_shutdown,
)
from worker_runtime.coordination.ordering.uses import MOST_NAMES_OWED, OF_THE_JOB, Use, Uses, have_meaning
from worker_runtime.coordination.ordering.waits import Waits, list_oldest_first

JOIN_NAME = "join"


class IllegalQuestionError(ValueError):
    """No worker that keeps to the protocol asks this: it checks first. The state is as it was before."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A question that waits.

    question: of the rank that asked it first.
    asked: the ranks that have asked it, in order.
    missing: those that have to ask it still: they have neither asked nor joined.
    number: counts the uses of names in the order of their first questions; it tells two uses of one name apart.
    """

    question: Question
    asked: tuple[int, ...]
    missing: tuple[int, ...]
    number: int = 0


class Ordering:
    """The order of one generation's operations; `size` ranks, and process set 0 of all of them to begin with."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._sets = {GLOBAL_SET: Uses(tuple(range(size)))}
        self._removed: set[int] = set()  # the numbers of all sets that were removed; some are in use again
        self._next_index = 0
        self._next_number = 0
        self._joined: set[int] = set()
        self._left: dict[int, str] = {}  # and how
        self._waits = Waits()
        self._is_lost = False

    def ask(self, rank: int, question: Question, extents: tuple[int, ...] = ()) -> list[Answer]:
        """A rank has an operation ready; what follows, releases in the order of their indices.

        Raises:
            IllegalQuestionError: the set never was, or the rank is not in it or has left; it has asked this already
                and has no answer; the extents mean nothing; or a JOIN, ADD_SET or REMOVE_SET is not asked of set 0.
        """
        uses = self._sets.get(question.process_set)
        if uses is None or uses.is_closed or rank not in uses.ranks:
            return self._turn_away(rank, question, uses)
        name = question.name
        signature = question.signature
        if extents or signature.kind in OF_THE_JOB or name == JOIN_NAME:
            self._check(rank, question, extents)
        if uses.owed and (reason := uses.pay(rank, name)) is not None:
            return [Refusal(question.process_set, name, (rank,), reason)]
        use = uses.pending.get(name)
        if use is None:
            use = uses.pending[name] = Use(self._next_number, question, uses.members)
            self._next_number += 1
        elif rank in use.asked:
            raise IllegalQuestionError(f"rank {rank} has asked {name} of process set {question.process_set} already")
        elif question.factors != use.question.factors or (
            signature is not use.question.signature and signature != use.question.signature
        ):
            use.is_mixed = True
        use.asked[rank] = question
        if extents:
            use.extents[rank] = extents
        if signature.kind is Kind.JOIN:
            return self._join(rank)
        if len(use.asked) == uses.size:
            return self._conclude(use, ())
        return self._settle(use) if self._joined else []

    def give_up(self, rank: int, process_set: int, name: str, reason: str) -> list[Answer]:
        """The rank's next use of a name has failed there before it could ask.

        Args:
            rank: which one.
            process_set: of the operation; ignored where there is none such, or nothing can be released in it.
            name: of the operation.
            reason: its error: "ValueError: ...".

        Raises:
            IllegalQuestionError: too many other names are given up that nobody asks for.
        """
        uses = self._sets.get(process_set)
        if uses is None or uses.is_closed or rank not in uses.ranks or rank in self._joined or name == JOIN_NAME:
            return []
        if len(uses.owed) > MOST_NAMES_OWED:
            raise IllegalQuestionError(f"operations of more than {MOST_NAMES_OWED} names were given up")
        use = uses.pending.get(name)
        if use is None or rank not in use.asked:
            return self._skip(uses, process_set, name, rank, reason)
        uses.ahead.setdefault(name, []).append((rank, reason))
        return []

    def withdraw(self, rank: int, process_set: int, name: str, reason: str) -> list[Answer]:
        """The rank has failed behind a question that is pending: it is refused to all, unless it was answered.

        Args:
            rank: which one.
            process_set: of the question.
            name: of the question; not that of a JOIN.
            reason: its error.
        """
        uses = self._sets.get(process_set)
        use = uses.pending.get(name) if uses is not None else None
        if use is None or rank not in use.asked or name == JOIN_NAME:
            return []
        return [self._refuse(use, explain_given_up(process_set, name, rank, reason))]

    def wait(self, rank: int, process_set: int, name: str, *, is_blocked: bool = False) -> list[Answer]:
        """The rank's only thread waits for this question; ignored when it is not pending: the answer is on its way.

        Args:
            rank: which one.
            process_set: of the question.
            name: of the question.
            is_blocked: it has waited so long that somebody must have gone wrong, if all have.
        """
        uses = self._sets.get(process_set)
        use = uses.pending.get(name) if uses is not None else None
        if use is None or rank not in use.asked or rank in self._joined:
            return []
        self._waits.begin(rank, use, is_blocked=is_blocked)
        return self._unlock()

    def unblock(self, rank: int) -> None:
        """The rank's thread waits no longer, or no longer alone."""
        self._waits.stop(rank)

    def leave(self, rank: int, how: str = "") -> list[Answer]:
        """The rank has said goodbye; it is told nothing more.

        Args:
            rank: which one.
            how: its process has ended, as in "ended (exit code 0)"; "" where it has only left.

        Raises:
            IllegalQuestionError: there is no such rank.
        """
        self._check_rank(rank)
        if self._is_lost or rank in self._left:
            return []
        self._left[rank] = how
        answers: list[Answer] = []
        for use in self._list_uses():
            if rank in use.members:
                use.asked.pop(rank, None)
                if use.asked:
                    answers.append(self._refuse(use, explain_shutdown(use.question, {rank: how})))
        for uses in self._sets.values():
            if rank in uses.ranks:
                uses.left.append(rank)
                uses.close()
        self._waits.stop(rank)
        self._joined.clear()  # the JOIN was pending in set 0, of which everybody is
        return answers + self._unlock()

    def vanish(self, rank: int) -> None:
        """The rank has ended, and whether it has left or is lost will be told: until then all wait for it.

        Raises:
            IllegalQuestionError: there is no such rank.
        """
        self._check_rank(rank)
        if self._is_lost or rank in self._left:
            return
        for use in self._list_uses():
            if use.asked.pop(rank, None) is not None:
                use.extents.pop(rank, None)
                if not use.asked:
                    self._end(use)
        self._joined.discard(rank)
        self._waits.stop(rank)

    def lose(self, rank: int, how: str) -> list[Answer]:
        """The rank has vanished; nothing is released any more, and nothing is pending.

        Args:
            rank: which one; it is no loss when it has left.
            how: that was noticed: "was cut off: its connection was closed".

        Raises:
            IllegalQuestionError: there is no such rank.
        """
        self._check_rank(rank)
        if self._is_lost or rank in self._left:
            return []
        self._is_lost = True
        for uses in self._sets.values():
            uses.close()
        self._waits.clear()
        self._joined.clear()
        return [Failure(f"rank {rank} {how}")]

    @property
    def next_index(self) -> int:
        """Of the next release."""
        return self._next_index

    def find_pending(self) -> list[Pending]:
        """What was asked and not answered, oldest first."""
        return [
            Pending(
                use.question,
                tuple(sorted(use.asked)),
                tuple(rank for rank in use.find_absent() if rank not in self._joined),
                use.number,
            )
            for use in self._list_uses()
        ]

    def find_members(self, process_set: int) -> tuple[int, ...] | None:
        """The ranks of a process set, in order; None where there is none of that number."""
        uses = self._sets.get(process_set)
        return None if uses is None else uses.members

    def _turn_away(self, rank: int, question: Question, uses: Uses | None) -> list[Answer]:
        """Answer a question that can never be released."""
        if self._is_lost:
            return []
        number = question.process_set
        if rank in self._left:
            raise IllegalQuestionError(f"rank {rank} has left, and asks for {question.name}")
        if uses is None and number in self._removed and 0 <= rank < self._size:
            return [Refusal(number, question.name, (rank,), explain_removal(question, number))]
        if uses is None:
            raise IllegalQuestionError(f"there is no process set {number}, of which rank {rank} asks {question.name}")
        if rank not in uses.ranks:
            raise IllegalQuestionError(f"rank {rank} is no member of process set {number}, and asks {question.name}")
        left = {member: self._left[member] for member in uses.left}
        return [Refusal(number, question.name, (rank,), explain_shutdown(question, left))]

    def _check(self, rank: int, question: Question, extents: tuple[int, ...]) -> None:
        """Look more closely at what is not the plain case."""
        kind = question.signature.kind
        meant = f"rank {rank} asks {question.name} of process set {question.process_set}"
        if kind in OF_THE_JOB and question.process_set != GLOBAL_SET:
            raise IllegalQuestionError(f"{meant}: {kind.name} belongs to set {GLOBAL_SET}")
        if question.process_set == GLOBAL_SET and (kind is Kind.JOIN) != (question.name == JOIN_NAME):
            raise IllegalQuestionError(f"{meant}: the name of a JOIN, and of nothing else, is {JOIN_NAME}")
        numbers = self._removed | self._sets.keys() - {GLOBAL_SET}
        if not have_meaning(kind, extents, self._size, numbers):
            raise IllegalQuestionError(f"{meant} with the extents {extents}, which mean nothing there")

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise IllegalQuestionError(f"there is no rank {rank} among {self._size}")

    def _join(self, rank: int) -> list[Answer]:
        """Count a rank as joined: for what is pending, and towards the end of the join."""
        self._joined.add(rank)
        self._waits.stop(rank)
        for uses in self._sets.values():
            uses.excuse(rank)
        answers: list[Answer] = []
        for use in self._list_uses():
            if rank in use.members and rank not in use.asked:
                answers += self._settle(use)
        join = self._sets[GLOBAL_SET].pending[JOIN_NAME]
        if len(self._joined) < self._size:
            return answers + self._unlock()
        self._joined.clear()
        return answers + self._release(join, (), rank)

    def _settle(self, use: Use) -> list[Answer]:
        """Answer a use for which somebody may have joined, if it can be answered now."""
        absent = use.find_absent()
        joined = tuple(rank for rank in absent if rank in self._joined)
        if joined and (question := use.find_intolerant()) is not None:
            return [self._refuse(use, explain_join(question, joined))]
        return self._conclude(use, joined) if len(joined) == len(absent) else []

    def _conclude(self, use: Use, joined: tuple[int, ...]) -> list[Answer]:
        """Answer a use for which all have asked or joined."""
        if (use.is_mixed or use.extents) and (reason := find_mismatch(use.asked, use.extents)) is not None:
            return [self._refuse(use, reason)]
        match use.question.signature.kind:
            case Kind.ADD_SET:
                return self._add_set(use)
            case Kind.REMOVE_SET:
                return self._remove_set(use)
            case _:
                return self._release(use, joined)

    def _add_set(self, use: Use) -> list[Answer]:
        wanted = use.question.signature.root
        free = next(number for number in range(1, len(self._sets) + 1) if number not in self._sets)
        number = free if wanted is None or wanted in self._sets else wanted
        self._sets[number] = Uses(use.extents[use.members[0]])
        return self._release(use, (), number)

    def _remove_set(self, use: Use) -> list[Answer]:
        """Remove a set, unless another question was faster; nothing waits there in vain."""
        (number,) = use.extents[use.members[0]]
        if number not in self._sets:
            return [self._refuse(use, explain_removal(use.question, number))]
        pending = list(self._sets[number].pending.values())
        refusals = [self._refuse(other, explain_removal(other.question, number)) for other in pending]
        del self._sets[number]
        self._removed.add(number)
        return [*self._release(use, ()), *refusals]

    def _release(self, use: Use, joined: tuple[int, ...], value: int = 0) -> list[Answer]:
        uses, name = self._end(use), use.question.name
        index = self._next_index
        self._next_index += 1
        if uses.late:
            uses.late.pop(name, None)
        if uses.ahead:
            self._catch_up(uses, use)
        return [Release(index, use.question, use.members, joined, use.collect_extents(), value)]

    def _refuse(self, use: Use, reason: str, spared: tuple[int, ...] = ()) -> Refusal:
        """Refuse a use to those who have asked it, and to the others, save some, when they do."""
        uses = self._end(use)
        if not uses.is_closed:
            uses.owe(use.question.name, reason, {*use.asked, *self._joined, *spared})
            self._catch_up(uses, use)
        return Refusal(use.question.process_set, use.question.name, tuple(sorted(use.asked)), reason)

    def _end(self, use: Use) -> Uses:
        """Take a use from what is pending and waited for; its set's others."""
        uses = self._sets[use.question.process_set]
        del uses.pending[use.question.name]
        if self._waits.idle:
            self._waits.end(use)
        return uses

    def _catch_up(self, uses: Uses, use: Use) -> None:
        """A use has ended, and some have given up the next: nobody can have asked that yet."""
        for rank, reason in uses.ahead.pop(use.question.name, ()):
            self._skip(uses, use.question.process_set, use.question.name, rank, reason)

    def _skip(self, uses: Uses, process_set: int, name: str, rank: int, reason: str) -> list[Answer]:
        """A rank gives up its next use of a name: one that was refused already, that which is pending, or a new one."""
        if uses.pay(rank, name) is not None:
            return []
        text = explain_given_up(process_set, name, rank, reason)
        use = uses.pending.get(name)
        if use is not None:
            return [self._refuse(use, text, (rank,))]
        uses.owe(name, text, {rank, *self._joined})
        return []

    def _unlock(self) -> list[Answer]:
        """When all wait, call for help; when nobody can ask any more, refuse what everybody waits for.

        After such a refusal the ranks may be out of step. A question that comes late for a use that was refused then is
        found here, and refused alone: the others wait where its rank will come.
        """
        waits = self._waits
        others = len(self._joined) + len(self._left)
        if not waits.idle or len(waits.idle) + others < self._size:
            return []
        if len(waits.blocked) + others < self._size:
            return [*waits.call_for_help(self._joined)]
        reason = explain_deadlock({rank: use.question for rank, use in waits.blocked.items()}, self._joined)
        awaited = list_oldest_first(waits.blocked)
        late = [use for use in awaited if self._sets[use.question.process_set].is_late(use)]
        answers: list[Answer] = [] if late else [Restart()]
        for use in late or awaited:
            uses = self._end(use)
            uses.note_deadlock(use, {*self._joined, *(use.find_absent() if late else ())})
            self._catch_up(uses, use)
            answers.append(Refusal(use.question.process_set, use.question.name, tuple(sorted(use.asked)), reason))
        return answers

    def _list_uses(self) -> list[Use]:
        """All that is pending, oldest first."""
        pending = [use for uses in self._sets.values() for use in uses.pending.values()]
        return sorted(pending, key=lambda use: use.number)
