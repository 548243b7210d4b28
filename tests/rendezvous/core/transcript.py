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
    wait 60         (all agents report meanwhile; only what follows from it is told)
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
from collections.abc import Collection, Iterator
from itertools import takewhile

from rendezvous.core import membership
from rendezvous.core.lifecycle import WorkerState
from rendezvous.core.messages import CoreError, Event, Reported, Ticked
from rendezvous.core.model import Policy, Worker
from rendezvous.core.state import State
from tests.rendezvous.core import stories
from tests.rendezvous.core.commands import parse_event, parse_policy
from tests.rendezvous.core.lines import show_effects, show_state


def rerun(text: str) -> str:
    """The transcript as its commands make it now."""
    return stories.rerun(text, Teller().tell)


def play(*commands: str) -> State:
    """The state after these commands; the first is the policy. What the core raises is not caught."""
    teller = Teller()
    for command in commands:
        match shlex.split(command):
            case ["policy", *limits]:
                teller.state = membership.begin(parse_policy(limits))
            case words:
                for each in expand(words, teller.state):
                    teller.state, _ = membership.step(teller.state, parse_event(each, find_size(teller.state)))
    return teller.state


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
