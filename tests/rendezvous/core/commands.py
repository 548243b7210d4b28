"""Commands of transcripts: what a line of text means to the core."""

import re
import shlex
from dataclasses import replace

from rendezvous.core.messages import (
    Begun,
    Declared,
    Event,
    Exited,
    HostsChanged,
    Joined,
    Lost,
    Noticed,
    Reported,
    SequencerLost,
    SequencerOpened,
    Signalled,
    Stopped,
    Ticked,
    WorldOpened,
)
from rendezvous.core.model import Endpoint, Host, Policy, Recovery, Restarts, Slot, Worker
from rendezvous.core.outcome import Blame
from rendezvous.core.reports import CompletedOperation, JoinReason, PendingOperation, Report


def parse_policy(limits: list[str]) -> Policy:
    """Read `size=4` or `min=2 max=4`, and the limits that are given."""
    given = dict(limit.split("=") for limit in limits)
    size = given.pop("size", None)
    names = {"lease": "lease_seconds", "grace": "grace_seconds", "start": "start_timeout_seconds"}
    seconds = {names[key]: float(given.pop(key)) for key in tuple(given) if key in names}
    least, most = (size, size) if size is not None else (given.pop("min"), given.pop("max"))
    failures = given.pop("failures", "0")
    start = given.pop("np", None)
    recovery = parse_recovery(given)
    restarts = parse_restarts(given)
    assert not given, f"unknown limits: {given}"
    return Policy(
        int(least),
        int(most),
        None if failures == "any" else int(failures),
        **seconds,
        start_size=None if start is None else int(start),
        recovery=recovery,
        restarts=restarts,
    )


def parse_restarts(given: dict[str, str]) -> Restarts:
    """Take out of the limits what concerns restarts."""
    limit = given.pop("restarts", "0")
    grow = given.pop("grow", None)
    return Restarts(
        limit=None if limit == "any" else int(limit),
        grow_after_seconds=None if grow is None else float(grow),
        needs_world=given.pop("world", "known") == "sought",  # sought: restarts need a world that has been seen
        has_checkpoint=given.pop("checkpoint", "no") == "yes",
    )


def parse_recovery(given: dict[str, str]) -> Recovery:
    """Take out of the limits what concerns recovery."""
    reset = given.pop("reset", None)
    least, _, most = given.pop("cooldown", "10-100").partition("-")
    return Recovery(
        reset_limit=None if reset is None else int(reset),
        elastic_timeout_seconds=float(given.pop("elastic", "600")),
        cooldown_seconds=(float(least), float(most)),
        failures_per_slot=int(given.pop("per_slot", "3")),
        forgiveness_seconds=float(given.pop("forgive", "600")),
        gathering_seconds=float(given.pop("gather", "5")),
    )


def parse_report(words: list[str], size: int) -> Report:
    """Read a worker's report."""
    facts: dict[str, str] = {}
    pending: list[PendingOperation] = []
    completed: list[CompletedOperation] = []
    flags: set[str] = set()
    for word in words:
        name, separator, value = word.partition("=")
        match name:
            case "pending":
                pending.append(parse_pending(value, size))
            case "done":
                done = parse_pending(value, size)
                assert done.index is not None
                response = done.obstacle.encode()  # "!RESPONSE"
                completed.append(CompletedOperation(done.ranks, done.name, done.index, done.number, response))
            case _ if separator:
                facts[name] = value
            case _:
                flags.add(name)
    reasons = flags & {reason.value for reason in JoinReason}
    report = Report(
        reason=JoinReason(reasons.pop()) if reasons else JoinReason.BEGIN,
        error=facts.pop("error", ""),
        has_state="state" in flags,
        pending=tuple(pending),
        completed=tuple(completed),
        seen=int(facts.pop("seen", "-1")),
        floor=int(facts.pop("floor", "0")),
        needs_state="needs_state" in flags,
    )
    assert not facts, f"unknown facts: {facts}"
    assert flags <= {"state", "needs_state", report.reason.value}, f"unknown words: {flags}"
    return report


# An OPERATION, as `transcript.py` explains it: NAME, #NUMBER, @INDEX, {RANKS}, ^ROOT, !OBSTACLE.
_OPERATION = re.compile(r"([^#@{^!]+)(?:#(\d+))?(?:@(\d+))?(?:\{([\d,]+)\})?(?:\^(\d+))?(?:!(.*))?")


def parse_pending(text: str, size: int) -> PendingOperation:
    """Read an operation; without ranks it is everybody's."""
    matched = _OPERATION.fullmatch(text)
    assert matched is not None, f"no operation: {text}"
    name, number, index, ranks, root, obstacle = matched.groups()
    kind, _, own = name.partition(".")
    return PendingOperation(
        ranks=tuple(range(size)) if ranks is None else tuple(int(rank) for rank in ranks.split(",")),
        name=name,
        title=f"{kind} '{own}'",
        number=int(number or 0),
        index=None if index is None else int(index),
        root=None if root is None else int(root),
        obstacle=obstacle or "",
    )


_OF_HOSTS = frozenset({"begin", "report", "lost", "refuse", "hosts", "notice", "signal", "world", "sequencer_lost"})


def parse_event(words: list[str], size: int = 0) -> Event:
    """Read a command that stands for an event; size: of the newest generation."""
    match words:
        case [kind, *_] if kind in _OF_HOSTS and words != ["notice", "job"]:
            return parse_event_of_hosts(words)
        case ["join", worker, after, *report] if after.startswith("after="):
            return Joined(parse_worker(worker), int(after.removeprefix("after=")), parse_report(report, size))
        case ["join", worker]:
            return Joined(parse_worker(worker))
        case ["declare", worker, *needs_state]:
            assert needs_state in ([], ["needs_state"]), needs_state
            return Declared(parse_worker(worker), needs_state=bool(needs_state))
        case ["sequencer", host, generation, "at", endpoint]:
            address, _, port = endpoint.rpartition(":")
            number = int(generation.removeprefix("generation="))
            return SequencerOpened(host, number, Endpoint(address, int(port)))
        case ["exit", worker, returncode, *why]:
            return parse_exit(Exited(parse_worker(worker), int(returncode)), why)
        case ["stop", code, reason, *immediately]:
            assert immediately in ([], ["immediately"]), immediately
            return Stopped(int(code), reason, immediately=bool(immediately))
        case ["notice", "job"]:
            return Noticed(None)
        case ["tick", now]:
            return Ticked(float(now))
        case _:
            raise ValueError(f"no such command: {shlex.join(words)}")


def parse_exit(exited: Exited, why: list[str]) -> Exited:
    """The exit of a worker, with what is known of its reason."""
    match why:
        case []:
            return exited
        case ["by", "itself"]:
            return replace(exited, has_left=True)
        case ["put", "down", error]:  # the code does not tell why, but its agent does
            return replace(exited, error=error)
        case ["stopped"]:
            return replace(exited, was_stopped=True)
        case ["because", *ranks, reason]:
            return replace(exited, blame=Blame(reason, tuple(map(int, ranks))))
        case _:
            return replace(exited, error=why[-1], cannot_start=True)


def parse_event_of_hosts(words: list[str]) -> Event:
    """Read a command that concerns hosts and their agents."""
    match words:
        case ["hosts", *hosts]:
            offers = (host.rpartition(":") for host in hosts)
            return HostsChanged(tuple(Host(name, int(slots)) for name, _, slots in offers))
        case ["begin", host]:
            return Begun(host)
        case ["report", host, *running]:
            assert running[:1] in ([], ["running"]), running
            return Reported(host, tuple(parse_worker(worker) for worker in running[1:]))
        case ["notice", host]:
            return Noticed(host)
        case ["signal", host, number]:
            return Signalled(host, int(number))
        case ["world", host]:
            return WorldOpened(host)
        case ["sequencer_lost", host, how]:
            return SequencerLost(host, how)
        case ["lost", host, reason]:
            return Lost(host, reason)
        case ["refuse", host, reason]:
            return Lost(host, reason, is_refused=True)
        case _:
            raise ValueError(f"no such command: {shlex.join(words)}")


def parse_worker(text: str) -> Worker:
    """Read `a:0`, or `a:0#2` for the second incarnation."""
    slot, _, incarnation = text.partition("#")
    return Worker(Slot.parse(slot), int(incarnation or "1"))
