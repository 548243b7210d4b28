"""Stories of the core as text: one command a line, and beneath it, indented, what followed.

A file begins with prose up to the first empty line. Lines that start with `#` are remarks. The commands:

    policy size=4 lease=30 grace=5 start=120 failures=0     (or min=2 max=4)
    hosts a:2 b:2
    report a running a:0 a:1#2
    join a:0 after=1
    store a:0 generation=1 at 10.0.0.1:4711
    exit b:1 -9 "the command was not found"
    lost b "its order channel closed"
    stop 130 "interrupted" at once
    tick 31
    state

What follows is written `> effect  (reason)`, `! Error: sentence`, and for `state`, `= line`.
"""

import copy
import shlex
from collections.abc import Iterator
from typing import assert_never

from rendezvous.core import membership
from rendezvous.core.effects import Announce, Depart, Effect, Finish, Launch, Publish, Refuse, Terminate
from rendezvous.core.errors import CoreError
from rendezvous.core.events import (
    Begun,
    Event,
    Exited,
    HostsChanged,
    Joined,
    Lost,
    Reported,
    Stopped,
    StoreOpened,
    Ticked,
)
from rendezvous.core.model import Assignment, Endpoint, Host, Policy, Slot, Worker
from rendezvous.core.outcome import Outcome
from rendezvous.core.state import State, WorkerRecord


def rerun(text: str) -> str:
    """The transcript as its commands make it now."""
    story, _, rest = text.partition("\n\n")
    teller = Teller()
    lines = [story, ""]
    for line in rest.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {output}" for output in teller.tell(line)]
    return "\n".join(lines) + "\n"


def play(*commands: str) -> State:
    """The state after these commands; the first is the policy. What the core raises is not caught."""
    teller = Teller()
    for command in commands:
        match shlex.split(command):
            case ["policy", *limits]:
                teller.state = membership.begin(parse_policy(limits))
            case words:
                teller.state, _ = membership.step(teller.state, parse_event(words))
    return teller.state


class Teller:
    """Tells a job of events and says what followed."""

    def __init__(self) -> None:
        self.state = membership.begin(Policy.static(1))

    def tell(self, command: str) -> list[str]:
        """Carry out a command; what followed, in lines."""
        match shlex.split(command):
            case ["policy", *limits]:
                self.state = membership.begin(parse_policy(limits))
                return []
            case ["state"]:
                return [f"= {line}" for line in show_state(self.state)]
            case words:
                return self._happen(parse_event(words))

    def _happen(self, event: Event) -> list[str]:
        before = copy.deepcopy(self.state)
        try:
            after, effects = membership.step(self.state, event)
        except CoreError as error:
            assert self.state == before, "a refused event has changed the state"
            return [f"! {type(error).__name__}: {error}"]
        assert self.state == before, "a step has changed the state before it"
        self.state = after
        return [f"> {line}" for effect in effects for line in show_effect(effect)]


def parse_policy(limits: list[str]) -> Policy:
    """Read `size=4` or `min=2 max=4`, and the limits that are given."""
    given = dict(limit.split("=") for limit in limits)
    size = given.pop("size", None)
    names = {"lease": "lease_seconds", "grace": "grace_seconds", "start": "start_timeout_seconds"}
    seconds = {names[key]: float(given.pop(key)) for key in tuple(given) if key in names}
    least, most = (size, size) if size is not None else (given.pop("min"), given.pop("max"))
    failures = int(given.pop("failures", "0"))
    assert not given, f"unknown limits: {given}"
    return Policy(int(least), int(most), failures, **seconds)


def parse_event(words: list[str]) -> Event:
    """Read a command that tells of an event."""
    match words:
        case ["hosts", *hosts]:
            offers = (host.rpartition(":") for host in hosts)
            return HostsChanged(tuple(Host(name, int(slots)) for name, _, slots in offers))
        case ["begin", host]:
            return Begun(host)
        case ["report", host, *running]:
            assert running[:1] in ([], ["running"]), running
            return Reported(host, tuple(parse_worker(worker) for worker in running[1:]))
        case ["join", worker, *after]:
            return Joined(parse_worker(worker), *(int(number.removeprefix("after=")) for number in after))
        case ["store", worker, generation, "at", endpoint]:
            address, _, port = endpoint.rpartition(":")
            number = int(generation.removeprefix("generation="))
            return StoreOpened(parse_worker(worker), number, Endpoint(address, int(port)))
        case ["exit", worker, returncode, *error]:
            return Exited(parse_worker(worker), int(returncode), *error)
        case ["lost", host, reason]:
            return Lost(host, reason)
        case ["stop", code, reason, *at_once]:
            assert at_once in ([], ["at", "once"]), at_once
            return Stopped(int(code), reason, at_once=bool(at_once))
        case ["tick", now]:
            return Ticked(float(now))
        case _:
            raise ValueError(f"no such command: {shlex.join(words)}")


def parse_worker(text: str) -> Worker:
    """Read `a:0`, or `a:0#2` for the second incarnation."""
    slot, _, incarnation = text.partition("#")
    return Worker(Slot.parse(slot), int(incarnation or "1"))


def show_effect(effect: Effect) -> Iterator[str]:
    """An effect in one line; a Publish has one more for each member."""
    match effect:
        case Launch(worker, assignment, reason):
            yield f"launch {worker} {show_assignment(assignment)}  ({reason})"
        case Terminate(worker, grace_seconds, reason):
            yield f"terminate {worker} grace={grace_seconds:g}  ({reason})"
        case Publish(generation, assignments, reason):
            yield f"publish {generation.number}  ({reason})"
            for worker, assignment in zip(generation.members, assignments, strict=True):
                yield f"  {worker} {show_assignment(assignment)}"
        case Announce(generation, endpoint):
            yield f"announce {generation} at {endpoint.address}:{endpoint.port}"
        case Refuse(worker, reason):
            yield f"refuse {worker}  ({reason})"
        case Depart(generation, worker, rank):
            yield f"depart {worker} rank={rank} generation={generation}"
        case Finish(outcome):
            yield f"finish {show_outcome(outcome)}"
        case _:
            assert_never(effect)


def show_assignment(assignment: Assignment) -> str:
    """A worker's numbers: each rank, and of how many."""
    return (
        f"rank={assignment.rank}/{assignment.size} local={assignment.local_rank}/{assignment.local_size} "
        f"cross={assignment.cross_rank}/{assignment.cross_size}"
    )


def show_outcome(outcome: Outcome) -> str:
    """How a job ended."""
    blamed = "" if outcome.worker is None else f" {outcome.worker} rank={outcome.rank} returncode={outcome.returncode}"
    return f"{outcome.exit_code} {outcome.cause}{blamed}  ({outcome.reason})"


def show_state(state: State) -> Iterator[str]:
    """What matters of a state: the job in one line, then its outcome, then its hosts."""
    facts = {
        "generation": state.number or None,
        "waiting": state.waiting or None,
        "since": state.waiting_since,
        "ended": state.ended or None,
        "failures": state.failures or None,
        "deadline": state.deadline,
    }
    known = (f"{name}={value:g}" for name, value in facts.items() if value is not None)
    yield " ".join([state.phase, *known])
    if state.outcome is not None:
        yield f"outcome {show_outcome(state.outcome)}"
    for host in state.hosts:
        heard = state.last_heard[host]
        sign = "never heard" if heard is None else f"heard at {heard:g}"
        yield f"{host} {sign}: {', '.join(show_record(record) for record in state.on(host))}"


def show_record(record: WorkerRecord) -> str:
    """A worker's standing, and how it ended."""
    returncode = "" if record.returncode is None else f" {record.returncode}"
    return f"{record.worker} {record.standing}{returncode}"
