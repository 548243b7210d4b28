"""The effects that a server performs when it is started again, derived from the state.

A server that dies may have decided what no agent has received. Effects are not in the journal. Each one that matters
follows from the state, and may be performed twice. Effects that are not listed here answer a caller, which asks again,
or follow from the next report of an agent (`reconcile`): Launch and Terminate.

One thing does not follow: whether an agent has begun on a host that has never reported. Where its launcher has not
heard that either, `restore` counts the agent as dismissed, and its workers as ended, or replaced. If it has begun, its
calls are refused, and it ends them.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from rendezvous.core.explanation import explain_end
from rendezvous.core.lifecycle import Phase, WorkerRecord, WorkerState
from rendezvous.core.losses import start_leases, unheard_hosts
from rendezvous.core.messages import (
    Announce,
    Depart,
    Effect,
    Effects,
    Interrupt,
    Notify,
    OfferResize,
    Publish,
    Refuse,
)
from rendezvous.core.model import Generation, rank
from rendezvous.core.outcome import SIGTERM
from rendezvous.core.scheduling import make_launches
from rendezvous.core.state import State

_JOINED = (WorkerState.WAITING, WorkerState.READY, WorkerState.MEMBER, WorkerState.REFUSED)  # so their agents run
_OFFERED = frozenset({Phase.FORMING, Phase.RUNNING})


def restore(state: State, begun: Collection[str] = ()) -> State:
    """The state with which a server continues that was started again, before its clock ticks.

    Its clock begins anywhere. So the first tick moves all time limits, and each lease begins again.

    Args:
        state: the last one of the former server.
        begun: hosts whose agents have started workers, also where they had not reported.
    """
    hosts = {each.worker.slot.host for each in state.list_workers(*_JOINED)} | set(begun)
    state = replace(start_leases(state, hosts & state.hosts.keys()), has_ticked=False, settled_until=0.0)
    for host in unheard_hosts(state):
        tenures = {**state.tenures, host: state.tenures.get(host, 0) + 1}
        alive = [each for each in state.on(host) if each.state is not WorkerState.ENDED]
        state = replace(state, tenures=tenures).with_records(_begin_again(state, each) for each in alive)
    return state


def _begin_again(state: State, record: WorkerRecord) -> WorkerRecord:
    """The record of the next worker in the slot, if there is to be one; else that of a worker that was not started."""
    if record.state is WorkerState.INTENDED and state.outcome is None:
        worker = record.worker
        return replace(record, worker=replace(worker, incarnation=worker.incarnation + 1))
    return replace(record, state=WorkerState.ENDED, returncode=-SIGTERM)


def holds(state: State) -> Effects:
    """What must hold at the agents and workers, in the order in which it is performed."""
    if state.outcome is not None:
        return (explain_end(state, state.outcome),) if state.phase is Phase.FINISHED else ()
    members = () if state.generation is None else tuple(_hold_generation(state, state.generation))
    return (*members, *_hold_refusals(state), *_hold_notice(state), *_hold_launches(state))


def list_audience(state: State) -> tuple[str, ...]:
    """The hosts on which a member of the newest generation is alive: its notifications are for them.

    The agent of another host may have been replaced since, and must not take itself for the agent of its members.
    """
    members = set() if state.generation is None else set(state.generation.members)
    return tuple(dict.fromkeys(each.worker.slot.host for each in state.alive() if each.worker in members))


def _hold_generation(state: State, generation: Generation) -> Iterator[Effect]:
    """What concerns the members of the newest generation."""
    number, members = generation.number, generation.members
    assignments = rank([worker.slot for worker in members])
    yield Publish(generation, assignments, "it is the newest generation", state.decision)
    if state.sequencer is not None:
        yield Announce(number, state.sequencer)
    for position, worker in enumerate(members):
        record = state.workers[worker.slot]
        if record.worker == worker and record.is_done:
            yield Depart(number, worker, position)
    if state.phase is Phase.REFORMING and state.interruption is not None:
        yield Interrupt(number, state.interruption)
    # Also the last one's withdrawal: it was made by the same generation, or changes nothing.
    if state.phase in _OFFERED and state.offer.number:
        yield OfferResize(number, state.offer.number, bool(state.offer.added), bool(state.offer.removed))


def _hold_refusals(state: State) -> Iterator[Effect]:
    """The workers that wait, or may wait, for a generation that will not include them."""
    for record in state.list_workers(WorkerState.REFUSED, WorkerState.LEAVING):
        if record.state is WorkerState.LEAVING:
            yield Refuse(record.worker, record.reason, leaves=True)
        elif state.refusal is not None:
            yield Refuse(record.worker, state.refusal)


def _hold_notice(state: State) -> Iterator[Effect]:
    """The stop notice of the whole job, which agents pass on."""
    if state.stops_at is not None:
        left_seconds = max(0.0, state.stops_at - state.clock)
        yield Notify(None, f"the stop notice stands: SIGTERM in {left_seconds:.0f} s to the workers that run then")


def _hold_launches(state: State) -> Iterator[Effect]:
    """The workers on hosts that may have no agent, which would have to ask for them."""
    for host in unheard_hosts(state):
        intended = [each for each in state.on(host) if each.state is WorkerState.INTENDED]
        yield from make_launches(state, intended, "its host has not reported")
