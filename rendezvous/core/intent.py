"""What is intended against what an agent has: orders follow from the difference, so a lost one is made good."""

from rendezvous.core.effects import Effect, Launch, Terminate
from rendezvous.core.events import Reported
from rendezvous.core.state import Standing, State


def reconcile(state: State, event: Reported) -> tuple[Effect, ...]:
    """Launch what should run on the host and does not, end what runs there and should not."""
    running = frozenset(event.running)
    intended = {record.worker: record for record in state.on(event.host) if record.standing is not Standing.ENDED}
    missing = tuple(
        Launch(worker, record.assignment, "the agent does not have it", is_late=state.number > 0)
        for worker, record in intended.items()
        if worker not in running and record.standing is Standing.INTENDED
    )
    surplus = tuple(
        Terminate(worker, 0.0, "it is not intended (any more)") for worker in event.running if worker not in intended
    )
    leaving = tuple(
        Terminate(worker, max(0.0, record.leaves_by - state.clock), record.reason)
        for worker, record in intended.items()
        if worker in running and record.standing is Standing.LEAVING
    )
    return missing + surplus + leaving
