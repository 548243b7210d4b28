"""Stories of the core as text: one command a line, and beneath it, indented, what followed.

A file begins with prose up to the first empty line. Lines that start with `#` are remarks. The commands:

    policy size=4 lease=30 grace=5 start=120 failures=0     (or min=2 max=4)
    policy min=2 max=4 np=3 failures=any reset=9 elastic=600 cooldown=10-100 per_slot=3 forgive=600 gather=5
    hosts a:2 b:2
    report a running a:0 a:1#2
    join a:0 after=1
    join a:0 after=1 continue state needs_state "error=the peer left" seen=7 floor=2 pending=OPERATION done=OPERATION
    declare a:0
    join a:0 b:0 after=1 form   (each of them does so; workers may be listed for `declare` and `exit`, too)
    join all        (in the order of their ranks; so do `declare all` and, host by host, `report all`)
    sequencer a generation=1 at 10.0.0.1:4711
    exit b:1 127 "the command was not found"
    exit b:1 -9 put down "it was stopped"
    lost b "its order channel closed"
    stop 130 "interrupted" immediately
    notice b        (or `notice job`)
    tick 31
    wait 60         (all agents report meanwhile; only what follows from it is shown)
    wait 5 but b    (the agent of b is silent)
    state

An OPERATION is `allreduce.x`, with what there is to say of it in this order: `#3` the number of a commit round, `@7`
its index, `{0,1}` the ranks of its set (all, else), `^0` the rank whose data it needs, `!reason` why it cannot be
repeated.

What follows is written `> effect  (reason)`, `! Error: sentence`, and for `state`, `= line`.
"""

import copy
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, repeat, takewhile
from typing import assert_never

from rendezvous.core import membership
from rendezvous.core.failures import Blacklist
from rendezvous.core.lifecycle import WorkerRecord, WorkerState
from rendezvous.core.messages import (
    Announce,
    CoreError,
    Depart,
    Dismiss,
    Effect,
    Event,
    Finish,
    Interrupt,
    Launch,
    Log,
    Notify,
    OfferResize,
    Publish,
    Refuse,
    Reported,
    Terminate,
    Ticked,
)
from rendezvous.core.model import Assignment, Policy, Worker
from rendezvous.core.outcome import SIGTERM, Outcome
from rendezvous.core.reports import Action, Done, RecoveryDecision
from rendezvous.core.state import State
from tests import transcripts
from tests.rendezvous.core.commands import parse_event, parse_policy
from tests.rendezvous.core.laws import number_members


def rerun(text: str) -> str:
    """The transcript as its commands make it now."""
    return transcripts.rerun(text, Player().run)


def play(*commands: str) -> State:
    """The state after these commands; the first is the policy. What the core raises is not caught."""
    player = Player()
    for command in commands:
        match shlex.split(command):
            case ["policy", *limits]:
                player.state = membership.begin(parse_policy(limits))
            case words:
                for each in expand(words, player.state):
                    player.state, _ = membership.step(player.state, parse_event(each, find_size(player.state)))
    return player.state


def expand(words: list[str], state: State) -> list[list[str]]:
    """A command for each whom it concerns."""
    match words:
        case ["join" | "declare" as what, "all", *rest]:
            return [[what, str(record.worker), *rest] for record in state.alive()]
        case ["join" | "declare" | "exit" as what, first, *rest]:
            others = list(takewhile(re.compile(r"\S+:\d+(#\d+)?").fullmatch, rest))
            return [[what, worker, *rest[len(others) :]] for worker in (first, *others)]
        case ["report", "all"]:
            return [["report", host, "running", *map(str, _list_alive(state, host))] for host in state.hosts]
        case _:
            return [words]


class Player:
    """Applies commands to a job and shows what followed."""

    def __init__(self) -> None:
        self.state = membership.begin(Policy.static(1))

    def run(self, command: str) -> list[str]:
        """Carry out a command; what followed, in lines."""
        match shlex.split(command):
            case ["policy", *limits]:
                self.state = membership.begin(parse_policy(limits))
                return []
            case ["state"]:
                return [f"= {line}" for line in show_state(self.state)]
            case ["wait", seconds, *silent]:
                assert silent[:1] in ([], ["but"]), silent
                return list(self._wait(float(seconds), silent[1:]))
            case words:
                events = (parse_event(each, find_size(self.state)) for each in expand(words, self.state))
                return [line for event in events for line in self._happen(event)]

    def _wait(self, seconds: float, silent: Collection[str]) -> Iterator[str]:
        """Let time pass in small steps, in which it does not seem that this machine has slept."""
        end = self.state.now + seconds
        while self.state.now < end:
            step = min(0.25, end - self.state.now)
            for line in self._step(Ticked(self.state.now + step)):
                yield f"{line} at {self.state.now:g}"
            for host in [host for host in self.state.hosts if host not in silent]:
                self._step(Reported(host, _list_alive(self.state, host)))

    def _happen(self, event: Event) -> list[str]:
        known, copied = self.state, copy.deepcopy(self.state)
        try:
            return self._step(event)
        except CoreError as error:
            return [f"! {type(error).__name__}: {error}"]
        finally:
            assert known == copied, "a step has changed the state before it"

    def _step(self, event: Event) -> list[str]:
        self.state, effects = membership.step(self.state, event)
        return [f"> {line}" for line in show_effects(effects)]


def _list_alive(state: State, host: str) -> tuple[Worker, ...]:
    return tuple(record.worker for record in state.on(host) if record.state is not WorkerState.ENDED)


def find_size(state: State) -> int:
    """Of the newest generation."""
    return 0 if state.generation is None else len(state.generation.members)


def show_effects(effects: Sequence[Effect]) -> Iterator[str]:
    """Effects in lines; what is ordered of several workers stands in one.

    Numbers are shown of workers that are launched, unless they are those of a generation of these workers.
    """
    launches = [effect for effect in effects if isinstance(effect, Launch)]
    expected = number_members([launch.worker.slot for launch in launches])
    numbered = expected != tuple(launch.assignment for launch in launches)
    parts = [show_parts(effect, numbered=numbered) for effect in effects]
    for (what, how), alike in groupby(parts, key=lambda part: (part[0], part[2])):
        workers = [worker for _, worker, _ in alike]
        yield from repeat(what, len(workers)) if not workers[0] else [f"{what} {' '.join(workers)}{how}"]


def show_parts(effect: Effect, *, numbered: bool) -> tuple[str, str, str]:
    """What is ordered, of which worker, and how; all in the first one where it is not ordered of a worker."""
    match effect:
        case Launch(worker, assignment, reason, _, known):
            numbers = f" {show_assignment(assignment)}" if numbered else ""
            in_round = f" round={known.number}" if known is not None and known.number else ""
            if known is not None and known.files_since is not None and known.files_since < known.number:
                in_round += f" with files since {known.files_since}"
            return "launch", str(worker), f"{numbers}{in_round}  ({reason})"
        case Terminate(worker, grace_seconds, reason, number):
            first = "" if number == SIGTERM else f" signal={number}"
            return "terminate", str(worker), f" grace={grace_seconds:g}{first}  ({reason})"
        case Log(sentence, level, _):
            return f"log {level}  ({sentence})", "", ""
        case _:
            return show_effect(effect), "", ""


def show_effect(
    effect: Announce | Depart | Dismiss | Finish | Interrupt | Notify | OfferResize | Publish | Refuse,
) -> str:
    """An effect in one line; the numbers of a generation's members follow from their slots, and are not shown."""
    match effect:
        case Publish(generation, assignments, reason, decision):
            assert assignments == number_members([worker.slot for worker in generation.members])
            members = " ".join(map(str, generation.members))
            return f"publish {generation.number}{show_decision(decision)}: {members}  ({reason})"
        case Announce(generation, endpoint):
            return f"announce {generation} at {endpoint.address}:{endpoint.port}"
        case Interrupt(generation, reason):
            return f"interrupt {generation}  ({reason})"
        case OfferResize(generation, number, adds, removes):
            what = " and ".join(word for word, is_so in (("adds", adds), ("removes", removes)) if is_so)
            return f"offer {number} to generation {generation}: {what or 'nothing any more'}"
        case Refuse(worker, reason, leaves):
            return f"refuse {worker}{' leaves' if leaves else ''}  ({reason})"
        case Depart(generation, worker, rank):
            return f"depart {worker} rank={rank} generation={generation}"
        case Dismiss(host, _, reason, is_lost):
            return f"dismiss {host}{' as lost' if is_lost else ''}  ({reason})"
        case Notify(host, reason):
            return f"notify {host or 'all'}  ({reason})"
        case Finish(outcome, explanation, sentence, stopped, notes, culprit):
            said = [
                explanation,
                *filter(None, [culprit]),
                *([sentence] if sentence not in {"", outcome.reason} else []),
                *notes,
            ]
            said += [f"stopped {','.join(map(str, stopped))}"] if stopped else []
            return f"finish {show_outcome(outcome)}; {'; '.join(said)}"
        case _:
            assert_never(effect)


def show_decision(decision: RecoveryDecision) -> str:
    """What all do, where that is more than to begin."""
    if decision.action is Action.BEGIN:
        return ""
    survivors = f" survivors={','.join(map(str, decision.survivors))}" if decision.survivors else ""
    done = "".join(f" done={show_done(done)}" for done in decision.done)
    return f" {decision.action}{survivors}{done}{' removed_only' if decision.removed_only else ''}"


def show_done(done: Done) -> str:
    """A commit round, a barrier, or another operation with its response."""
    what = done.name or f"commit#{done.number}"
    response = f"!{done.response.decode()}" if done.response else ""
    return f"{what}{{{','.join(map(str, done.ranks))}}}{response}"


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
        "ready": state.count(WorkerState.READY) or None,
        "since": state.waiting_since,
        "ended": state.ended or None,
        "failures": state.failures or None,
        "resets": state.resets or None,
        "short since": state.short_since,
        "deadline": state.deadline,
    }
    known = (f"{name}={value:g}" for name, value in facts.items() if value is not None)
    yield " ".join([state.phase, *known])
    if state.outcome is not None:
        yield f"outcome {show_outcome(state.outcome)}"
    for host, left_seconds in find_closed(state.blacklist, state.clock).items():
        yield f"{host} is closed for {left_seconds:g} s more"
    for host in state.hosts:
        heard = state.last_heard[host]
        sign = "never heard" if heard is None else f"heard at {heard:g}"
        yield f"{host} {sign}: {', '.join(show_record(record) for record in state.on(host))}"


def find_closed(blacklist: Blacklist, now: float) -> dict[str, float]:
    """The closed hosts, and for how many seconds more."""
    return {host: known.until - now for host, known in blacklist.hosts.items() if now < known.until}


def show_record(record: WorkerRecord) -> str:
    """A worker's state, and how it ended."""
    returncode = "" if record.returncode is None else f" {record.returncode}"
    return f"{record.worker} {record.state}{returncode}"
