"""Lines of transcripts: what followed from a command, in text."""

from collections.abc import Iterator, Sequence
from itertools import groupby, repeat
from typing import assert_never

from rendezvous.core.failures import Blacklist
from rendezvous.core.lifecycle import WorkerRecord, WorkerState
from rendezvous.core.messages import (
    Announce,
    Depart,
    Dismiss,
    Effect,
    Finish,
    Interrupt,
    Launch,
    Log,
    Notify,
    OfferResize,
    Publish,
    Refuse,
    Terminate,
)
from rendezvous.core.model import Assignment
from rendezvous.core.outcome import SIGTERM, Outcome
from rendezvous.core.reports import Decision, Done, Verdict
from rendezvous.core.state import State
from tests.rendezvous.core.judgement import number_members


def show_effects(effects: Sequence[Effect]) -> Iterator[str]:
    """Effects in lines; what is ordered of several workers stands in one.

    Numbers are told of workers that are launched, unless they are those of a generation of these workers.
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
        case Publish(generation, assignments, reason, verdict):
            assert assignments == number_members([worker.slot for worker in generation.members])
            members = " ".join(map(str, generation.members))
            return f"publish {generation.number}{show_verdict(verdict)}: {members}  ({reason})"
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
        case Dismiss(host, reason, is_lost):
            return f"dismiss {host}{' as lost' if is_lost else ''}  ({reason})"
        case Notify(host, reason):
            return f"notify {host or 'all'}  ({reason})"
        case Finish(outcome, explanation, sentence, stopped, notes):
            said = [explanation, *([sentence] if sentence not in {"", outcome.reason} else []), *notes]
            said += [f"stopped {','.join(map(str, stopped))}"] if stopped else []
            return f"finish {show_outcome(outcome)}; {'; '.join(said)}"
        case _:
            assert_never(effect)


def show_verdict(verdict: Verdict) -> str:
    """What all do, where that is more than to begin."""
    if verdict.decision is Decision.BEGIN:
        return ""
    survivors = f" survivors={','.join(map(str, verdict.survivors))}" if verdict.survivors else ""
    done = "".join(f" done={show_done(done)}" for done in verdict.done)
    return f" {verdict.decision}{survivors}{done}{' removed_only' if verdict.removed_only else ''}"


def show_done(done: Done) -> str:
    """A commit round, a barrier, or another operation with its answer."""
    what = done.name or f"commit#{done.number}"
    answer = f"!{done.answer.decode()}" if done.answer else ""
    return f"{what}{{{','.join(map(str, done.ranks))}}}{answer}"


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
