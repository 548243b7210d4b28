"""Simulated ranks that run their programs against the rules, while a checker looks on.

Messages from a rank arrive in their order, and so do responses; chance chooses the order of everything else.
"""

import random
from collections import deque
from collections.abc import Callable

from tests.worker_runtime.coordination.ordering.checker import Checker, Name
from tests.worker_runtime.coordination.ordering.programs import (
    EVERYBODY,
    Add,
    Ask,
    Hang,
    Instruction,
    Job,
    Join,
    Leave,
    Operation,
    Remove,
    Trouble,
    Wait,
)
from worker_runtime.coordination.ordering.ordering import JOIN_NAME, Ordering
from worker_runtime.coordination.ordering.requests import (
    GLOBAL_SET,
    Failure,
    Kind,
    Refusal,
    Release,
    Request,
    Response,
    Signature,
)


class Rank:
    """Runs a program; `outbox` and `inbox` are what is on its way."""

    def __init__(self, rank: int, program: tuple[Instruction, ...]) -> None:
        self.rank = rank
        self.steps = deque(program)
        self.numbers = {EVERYBODY: GLOBAL_SET}
        self.open: set[Name] = set()
        self.waits: Name | None = None
        self.then: Callable[[Response], None] = lambda _: None
        self.outbox: deque[tuple[str, Request, tuple[int, ...]]] = deque()
        self.inbox: deque[Response] = deque()
        self.released: list[int] = []
        self.results: list[tuple[Name, str]] = []
        self.has_left = False
        self.hangs = False

    @property
    def can_step(self) -> bool:
        """Whether its program continues."""
        return self.waits is None and bool(self.steps) and not self.hangs

    def step(self) -> None:
        """Carry out its next instruction."""
        match self.steps.popleft():
            case Ask(operation):
                self._ask(operation)
            case Wait(where, name):
                self._wait((self.numbers.get(where, -1), name))
            case Add(where, ranks):
                self._ask_and_wait(f"add_set.{where}", Kind.ADD_SET, ranks, lambda response: self._add(where, response))
            case Remove(where) if where in self.numbers:
                number = self.numbers[where]
                then = lambda response: self._remove(where, response)  # noqa: E731 - as the one above
                self._ask_and_wait(f"remove_set.{where}", Kind.REMOVE_SET, (number,), then)
            case Remove():
                pass
            case Join():
                self._ask_and_wait(JOIN_NAME, Kind.JOIN, (), lambda _: None)
            case Leave() as leave:
                self._leave(leave)
            case Hang():
                self.hangs = True

    def hear(self) -> None:
        """Take the next response."""
        response = self.inbox.popleft()
        match response:
            case Release(index, request):
                self.released.append(index)
                name = (request.process_set, request.name)
            case Refusal(number, text):
                name = (number, text)
            case Failure():
                self.hangs = True
                return
        if name not in self.open:
            assert isinstance(response, Release), "a refusal of what was not asked"
            return  # this rank has joined, and contributes neutral elements
        self.open.remove(name)
        self.results.append((name, f"released with {response.joined}" if isinstance(response, Release) else "refused"))
        if self.waits == name:
            self.waits = None
            then, self.then = self.then, lambda _: None
            then(response)

    def _ask(self, operation: Operation) -> None:
        if operation.where not in self.numbers:
            return  # its set was not added, or is gone
        name = (self.numbers[operation.where], operation.name)
        if name in self.open:
            self.steps.appendleft(Ask(operation))
            self._wait(name)
            return
        self._send(Request(*name, operation.signature), operation.sizes)

    def _ask_and_wait(self, name: str, kind: Kind, sizes: tuple[int, ...], then: Callable[[Response], None]) -> None:
        self._send(Request(GLOBAL_SET, name, Signature(kind)), sizes)
        self._wait((GLOBAL_SET, name))
        self.then = then

    def _send(self, request: Request, sizes: tuple[int, ...]) -> None:
        self.open.add((request.process_set, request.name))
        self.outbox.append(("ask", request, sizes))

    def _wait(self, name: Name) -> None:
        if name in self.open:
            self.waits = name
            self.outbox.append(("block", Request(*name, _NOTHING.signature), ()))

    def _leave(self, leave: Leave) -> None:
        if self.open:
            self.steps.appendleft(leave)
            self._wait(min(self.open))
        else:
            self.outbox.append(("leave", _NOTHING, ()))
            self.has_left = True
            self.steps.clear()

    def _add(self, where: str, response: Response) -> None:
        if isinstance(response, Release):
            self.numbers[where] = response.value

    def _remove(self, where: str, response: Response) -> None:
        if isinstance(response, Release):
            del self.numbers[where]


_NOTHING = Request(GLOBAL_SET, "", Signature(Kind.BARRIER))


class Simulation:
    """A job that runs, with the messages in an order by chance; `careful` looks at all that is pending each time."""

    def __init__(self, job: Job, chance: random.Random, *, careful: bool) -> None:
        self.job = job
        self.chance = chance
        self.careful = careful
        self.ordering = Ordering(job.size)
        self.ranks = [Rank(rank, program) for rank, program in enumerate(job.programs)]
        self.checker = Checker(job.size)
        self.messages = 0
        self.loss = chance.randint(0, 60) if job.trouble is Trouble.LOSS else None
        self.is_lost = False

    def run(self) -> "Simulation":
        """To its end, or until nothing happens any more."""
        while choices := [
            (action, rank)
            for rank in self.ranks
            for action, is_possible in (
                (self._deliver, rank.outbox),
                (Rank.hear, rank.inbox),
                (Rank.step, rank.can_step),
            )
            if is_possible
        ]:
            action, rank = self.chance.choice(choices)
            action(rank)
        self.checker.check_pending(self.ordering)
        self.checker.check_results()
        for rank in self.ranks:
            assert rank.released == sorted(set(rank.released)), "a rank has another order than that of the indices"
        self._check_end()
        return self

    def _deliver(self, rank: Rank) -> None:
        """The rules hear the next message of a rank."""
        what, request, sizes = rank.outbox.popleft()
        self.messages += 1
        if self.loss == self.messages:
            self._lose(self.job.culprit)
        if self.is_lost:
            extra = self.ordering.ask(rank.rank, request, sizes) if what == "ask" else []
            assert extra == [], "a response after the failure"
            return
        match what:
            case "ask":
                self.checker.note_request(rank.rank, request, sizes)
                self._post(self.ordering.ask(rank.rank, request, sizes))
            case "block":
                self.checker.counts["blocked"] += 1
                self._post(self.ordering.block(rank.rank, request.process_set, request.name))
            case "leave":
                self.checker.counts["left"] += 1
                self.checker.left.add(rank.rank)
                assert not self.checker.open[rank.rank]
                self._post(self.ordering.leave(rank.rank))
        if self.careful or self.messages % 16 == 0:
            self.checker.check_pending(self.ordering)

    def _lose(self, rank: int) -> None:
        if rank in self.checker.left:
            assert self.ordering.lose(rank, "is gone") == []
            return
        self._post(self.ordering.lose(rank, "is gone"))
        self.is_lost = True
        self.checker.open = [{} for _ in self.ranks]

    def _post(self, responses: list[Response]) -> None:
        for response in responses:
            for rank in self.checker.note_response(response):
                self.ranks[rank].inbox.append(response)

    def _check_end(self) -> None:
        """All have left, unless one was lost, or hangs; then everybody waits for that one, and it is named."""
        if self.is_lost:
            return
        if self.job.trouble is Trouble.NONE:
            for cause in ("has been shut down", "every rank waits", "Mismatched"):
                assert not self.checker.counts[f"refused: {cause}"], "a refusal although nothing is wrong"
        waiting = [rank for rank in self.ranks if rank.waits is not None]
        hanging = {rank.rank for rank in self.ranks if rank.hangs}
        if not hanging:
            assert all(rank.has_left for rank in self.ranks)
            assert self.ordering.find_pending() == []
            return
        missing = {(p.request.process_set, p.request.name): p.missing for p in self.ordering.find_pending()}
        for rank in waiting:
            seen: set[int] = set()
            reached = [rank]
            while reached:
                waits = reached.pop().waits
                fresh = [other for other in (missing[waits] if waits is not None else ()) if other not in seen]
                seen.update(fresh)
                reached += [self.ranks[other] for other in fresh]
            assert seen & hanging, f"rank {rank.rank} waits for {rank.waits}, but not for the one that hangs"
