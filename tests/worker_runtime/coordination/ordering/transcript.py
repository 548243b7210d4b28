"""Stories of the sequencer's rules as text: one command a line, and beneath it, indented, what followed.

A file begins with prose up to the first empty line. Lines that start with `#` are remarks. The commands:

    size 3
    ask 0,2 allreduce.loss float32(4) op=SUM     (further: set= root= pre= post= device= note= payload= kind= sizes=)
    join 1
    add 0,1,2 0,1
    remove 0,1,2 1
    ask 1 allreduce.loss kind=FAIL note="ValueError: why"
    block 0 allreduce.loss set=1
    unblock 0
    leave 2
    lose 1 "its connection was closed"
    pending
    stall 60 limit=120
    set 1

What follows is written `> response  (reason)`, `! Error: sentence`, and for the last three, `= line`.
"""

import copy
import re
import shlex
from collections.abc import Iterator
from typing import assert_never

from tests import transcripts
from worker_runtime.coordination.ordering.ordering import JOIN_NAME, IllegalRequestError, Ordering
from worker_runtime.coordination.ordering.requests import (
    GLOBAL_SET,
    Failure,
    Kind,
    Reduction,
    Refusal,
    Release,
    Request,
    Response,
    Signature,
)
from worker_runtime.coordination.sequencer.stalls import describe_stall_limit
from worker_runtime.coordination.sequencer.waits import Wait, describe_waits

TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)\((?P<shape>[\d,]*)\)")


def rerun(text: str) -> str:
    """The transcript as its commands make it now."""
    return transcripts.rerun(text, Player().run)


def play(*commands: str) -> list[Response]:
    """What followed from the last of these commands; the first is the size. What the rules raise is not caught."""
    player = Player()
    responses: list[Response] = []
    for command in commands:
        responses = player.act(shlex.split(command))
    return responses


class Player:
    """Passes requests to an ordering and shows what followed."""

    def __init__(self) -> None:
        self.ordering = Ordering(1)

    def run(self, command: str) -> list[str]:
        """Carry out a command; what followed, in lines."""
        match shlex.split(command):
            case ["pending"]:
                return [f"= {line}" for line in self._show_pending()]
            case ["stall", seconds, *limits]:
                limit = float(limits[0].removeprefix("limit=")) if limits else float("inf")
                return [f"= {line}" for line in self._show_stall(float(seconds), limit)]
            case ["set", number]:
                return [f"= {self.ordering.find_members(int(number))}"]
            case words:
                before = copy.deepcopy(vars(self.ordering))
                try:
                    responses = self.act(words)
                except IllegalRequestError as error:
                    assert vars(self.ordering) == before, "an illegal request has changed the state"
                    return [f"! {type(error).__name__}: {error}"]
                return [f"> {show_response(response)}" for response in responses]

    def act(self, words: list[str]) -> list[Response]:
        """Carry out a command of these words."""
        match words:
            case ["size", size]:
                self.ordering = Ordering(int(size))
                return []
            case ["ask", ranks, *request]:
                return self._ask(ranks, *parse_request(request))
            case ["join", ranks]:
                return self._ask(ranks, Request(GLOBAL_SET, JOIN_NAME, Signature(Kind.JOIN)), ())
            case ["add" | "remove" as what, ranks, numbers]:
                kind = Kind.ADD_SET if what == "add" else Kind.REMOVE_SET
                request = Request(GLOBAL_SET, f"{what}_set.{numbers}", Signature(kind))
                return self._ask(ranks, request, parse_numbers(numbers))
            case ["block", ranks, name, *options]:
                number = int(options[0].removeprefix("set=")) if options else GLOBAL_SET
                blocked = (self.ordering.block(rank, number, name) for rank in parse_numbers(ranks))
                return [response for responses in blocked for response in responses]
            case ["unblock", rank]:
                self.ordering.unblock(int(rank))
                return []
            case ["leave", rank, *how]:
                return self.ordering.leave(int(rank), *how)
            case ["lose", rank, reason]:
                return self.ordering.lose(int(rank), reason)
            case _:
                raise ValueError(f"no such command: {shlex.join(words)}")

    def _ask(self, ranks: str, request: Request, sizes: tuple[int, ...]) -> list[Response]:
        return [response for rank in parse_numbers(ranks) for response in self.ordering.ask(rank, request, sizes)]

    def _show_pending(self) -> Iterator[str]:
        for pending in self.ordering.find_pending():
            asked, missing = (",".join(map(str, ranks)) or "none" for ranks in (pending.asked, pending.missing))
            yield f"{show_name(pending.request)} asked by {asked}, missing {missing}"

    def _show_stall(self, seconds: float, limit: float) -> Iterator[str]:
        """As if everything had waited for 100 seconds, the newest for one second less than the one before."""
        waiting = [(pending, 100.0 - age) for age, pending in enumerate(self.ordering.find_pending())]
        waits = [Wait(pending, -waited, -waited) for pending, waited in waiting if waited > seconds]
        yield describe_waits(waits, self.ordering.find_blocked(), 0.0) if waits else "no stall"
        yield from (describe_stall_limit(waiting, limit) or "").splitlines()


def parse_request(words: list[str]) -> tuple[Request, tuple[int, ...]]:
    """Read `allreduce.loss float32(4) op=SUM`; the kind follows from the name unless it is given."""
    name, *rest = words
    given = dict(word.split("=", 1) for word in rest if "=" in word)
    tensors = [TENSOR.fullmatch(word) for word in rest if "=" not in word]
    kind = Kind[given.pop("kind", name.partition(".")[0].removeprefix("grouped_").upper())]
    is_reduced = kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER)
    number = int(given.pop("set", GLOBAL_SET))
    sizes = parse_numbers(given.pop("sizes", ""))
    signature = Signature(
        kind,
        dtypes=tuple(tensor["dtype"] for tensor in tensors if tensor),
        shapes=tuple(parse_numbers(tensor["shape"]) for tensor in tensors if tensor),
        reduction=Reduction[given.pop("op", "AVERAGE")] if is_reduced else None,
        root=int(given.pop("root", "0")) if kind is Kind.BROADCAST else None,
        device=given.pop("device", "cpu"),
        payload_dtype=given.pop("payload", ""),
        tolerates_joined=given.pop("tolerant", "") == "yes",
        note=given.pop("note", ""),
    )
    factors = float(given.pop("pre", "1")), float(given.pop("post", "1"))
    assert not given, f"unknown: {given}"
    assert None not in tensors, f"no tensor: {rest}"
    return Request(number, name, signature, factors), sizes


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read `0,2`, or nothing."""
    return tuple(int(number) for number in text.split(",") if number)


def show_name(request: Request) -> str:
    """A request's name, and its set where it is not that of all."""
    return request.name if request.process_set == GLOBAL_SET else f"{request.name} set={request.process_set}"


def show_response(response: Response) -> str:
    """A response in one line."""
    match response:
        case Release(index, request, members, joined, sizes, value):
            facts = {"joined": joined, "sizes": sizes, "value": value}
            known = [f" {name}={str(fact).replace(' ', '')}" for name, fact in facts.items() if fact]
            return f"release {index} {show_name(request)} to {','.join(map(str, members))}{''.join(known)}"
        case Refusal(number, name, ranks, reason):
            meant = name if number == GLOBAL_SET else f"{name} set={number}"
            return f"refuse {meant} to {','.join(map(str, ranks))}  ({reason})"
        case Failure(reason):
            return f"failure  ({reason})"
        case _:
            assert_never(response)
