"""What becomes of a simulated job: all do what is expected of them, or nobody comes, or all have trained enough."""

from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import HostsChanged, Joined
from rendezvous.core.model import Host
from rendezvous.core.rounds import MOST_PAUSE_SECONDS
from tests.rendezvous.core.world import World


def cooperate(world: World) -> None:
    """From now on nothing fails, and everybody does what is expected: the job runs with all, or has ended."""
    world.stuck = world.unheard = 0.0
    world.tell(HostsChanged((Host("h0", 4), Host("fresh", world.witness.policy.min_size))))
    least = max(world.witness.policy.lease_seconds / 4, 0.5)
    recovery = world.witness.policy.recovery
    limit = 2 * (recovery.elastic_timeout_seconds + world.witness.policy.start_timeout_seconds)
    restarts = world.witness.policy.restarts
    limit += 2 * (restarts.planned_grace_seconds + MOST_PAUSE_SECONDS + 3 * least) if restarts.limit != 0 else 0.0
    last = world.witness.state.now + limit + world.witness.policy.report_seconds + recovery.cooldown_seconds[1]
    while not _is_settled(world):
        assert world.witness.state.now <= last, "nobody fails, and yet the job neither runs nor ends"
        world.pass_time(least)
        world.end_the_told()
        for each in list(world.alive.values()):
            if world.witness.state.refusal is not None:
                world.end(each.worker, 0)  # one has ended well: so do the others
            elif each.worker in world.alive and not each.is_told:
                world.join(each)
                world.declare(each)
        world.resize()
        if world.witness.state.phase is Phase.FORMING:
            _join_them(world)


def starve(world: World) -> None:
    """All members but one are lost, and nobody comes in their place."""
    members = world.list_members()
    state = world.witness.state
    if state.phase is not Phase.RUNNING or len(members) < 2 or not all(each.has_state for each in members):
        return
    last = world.chance.choice(members)
    for each in members:
        if each is not last:
            world.end(each.worker, -9)
    deadline = state.now + state.policy.recovery.elastic_timeout_seconds + state.policy.report_seconds
    while world.witness.state.phase is Phase.REFORMING and world.witness.state.now < deadline:
        if last.worker in world.alive:
            world.join(last)
        world.pass_time(max(state.policy.lease_seconds / 4, 0.5))


def end_well(world: World) -> None:
    """Everybody has trained enough."""
    for worker in list(world.alive):
        world.end(worker, 0)


def _join_them(world: World) -> None:
    """Some have begun again: the others do likewise."""
    records = world.witness.state.workers.values()
    reasons = {record.report.reason for record in records if record.report is not None}
    for each in world.list_members():
        if not each.joined and each.generation == world.generation and reasons and _is_forming(world):
            each.joined = True
            report = world.report_of(each, reasons.copy().pop())
            world.tell(Joined(each.worker, each.generation, report))


def _is_forming(world: World) -> bool:
    return world.witness.state.phase is Phase.FORMING and world.interrupted != world.generation


def _is_settled(world: World) -> bool:
    state = world.witness.state
    if state.phase is Phase.FINISHED:
        return True
    if not world.joins and not state.number:
        return state.phase is Phase.FORMING and {record.worker for record in state.alive()} == world.alive.keys()
    is_alone = not world.has_states  # a script that is none of an elastic job takes nobody in
    stuck = {each.worker for each in world.alive.values() if each.is_stuck and each.is_told}
    return state.phase is Phase.RUNNING and all(
        record.state == "member" or (is_alone and record.state == "ready") or record.worker in stuck
        for record in state.alive()
    )
