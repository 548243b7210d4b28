"""Rounds: all workers are stopped, and all are started again, when the job would else end by a loss.

A program of torch.distributed cannot continue with other members: its processes have to begin again, as a world with
new ranks, a new size and a new port. So do workers that called `init()` once no other way to recover is left.

A restart has three steps. `stop_round` stops all workers. `judge_round`, when all have ended, knows which loss was the
first: a killed worker's peers fail because of it, and their reports may come earlier. `start_round` starts all workers
again when there are enough slots. A program that fails as soon as it has started gets more and more time.

A planned restart leaves a host that has got a stop notice, or uses new slots. It is not counted, and the workers get
time to save.
"""

from collections.abc import Sequence
from dataclasses import replace

from rendezvous.core.failures import CrashLoop
from rendezvous.core.lifecycle import Phase, WorkerRecord, WorkerState
from rendezvous.core.losses import KEPT_LOSSES, count_slot_failure, lose_host, renew_lease
from rendezvous.core.messages import Effects, Level, Log, Lost
from rendezvous.core.model import Slot, Worker, rank
from rendezvous.core.outcome import TEMPORARY_FAILURE, Cause, Outcome, run_short
from rendezvous.core.reports import Action, RecoveryDecision
from rendezvous.core.scheduling import begin_round, list_open_slots, make_launches, note_stopped, retire
from rendezvous.core.state import Offer, Restart, State

QUICK_SECONDS = 5.0  # a round that ends earlier may end so again
MOST_PAUSE_SECONDS = 60.0  # after several of them in a row
_MOST_DOUBLINGS = 6  # of a pause; keeps 2.0 ** n finite
_FAILING_SECONDS = 30.0  # a round that ends earlier, by an exit code, may have no chance; a longer one has trained
_MOST_FAILED_ROUNDS = 3  # in a row; of a job whose restarts have no limit


def plan_growth(state: State) -> tuple[State, Effects]:
    """Plan a larger round if there have been slots for more workers for as long as `--grow-after` says."""
    limit_seconds = state.policy.restarts.grow_after_seconds
    if limit_seconds is None:
        return state, ()
    larger = _count_larger(state)
    if not larger:
        return state if state.growing_since is None else replace(state, growing_since=None), ()
    if state.growing_since is None:
        return replace(state, growing_since=state.clock), ()
    if state.clock - state.growing_since < limit_seconds:
        return state, ()
    reason = f"there are slots for {larger} workers (--grow-after)"
    outcome = Outcome(TEMPORARY_FAILURE, Cause.STOPPED, reason)
    return replace(state, restart=Restart(outcome, is_planned=True, since=state.clock)), ()


def _count_larger(state: State) -> int:
    """How many workers a larger round would have; 0 if none can be planned."""
    if not (state.is_one_world and state.may_restart and state.workers):
        return 0
    if state.stops_at is not None or state.refusal is not None:
        return 0
    alive = state.alive()
    staying = sum(state.offers(each.worker.slot) for each in alive)
    answering = sum(slot.host not in state.unanswered for slot in list_open_slots(state))
    larger = min(state.policy.max_size, staying + answering)
    if larger > len(alive):
        return larger
    return 0


def stop_round(state: State) -> tuple[State, Effects]:
    """Stop all workers, if they are to be started again."""
    restart = state.restart
    if restart is None or state.phase is Phase.RESTARTING:
        return state, ()

    policy, restarts = state.policy, state.policy.restarts
    if restart.is_planned:
        grace_seconds = restarts.planned_grace_seconds
    elif state.restarts == restarts.limit:  # the job ends
        grace_seconds = policy.grace_seconds
    else:
        grace_seconds = restarts.grace_seconds
    most_seconds = max(grace_seconds, policy.grace_seconds)  # of workers that were being stopped before

    state = replace(
        note_stopped(state).enter(Phase.RESTARTING),
        deadline=state.now + most_seconds + policy.silence_seconds,  # a host that is lost is found first
        short_since=_keep_shortage(state),
        first_failure=None,
        refusal=None,
        interruption=None,
        gathering_since=None,
        offer=Offer(state.offer.number),
    )

    alive = [each for each in state.alive() if each.state is not WorkerState.LEAVING]
    return retire(state, alive, restart.outcome.reason, grace_seconds, lets_save=restart.is_planned)


def _keep_shortage(state: State) -> float | None:
    """Since when there are too few slots or agents. Only a round that has begun on all its hosts ends that."""
    if state.unreported:
        return state.short_since
    return None


def judge_round(state: State) -> tuple[State, Effects]:
    """When all workers have ended, count the loss, and decide when the next round begins, or that the job ends."""
    restart, limit = state.restart, state.policy.restarts.limit
    if restart is None or restart.at is not None or state.ended < len(state.workers):
        return state, ()
    outcome, lasted_seconds = restart.outcome, restart.since - state.round_since
    is_quick = not restart.is_planned and lasted_seconds < QUICK_SECONDS
    has_failed = not restart.is_planned and lasted_seconds < _FAILING_SECONDS and outcome.certainty <= 0
    quick = state.quick_rounds + 1 if is_quick else 0
    failed = state.failed_rounds + 1 if has_failed else 0

    # A round that never had a report from all its hosts has not begun.
    is_counted = not (restart.is_planned or state.unreported)
    if limit is None:
        is_last = failed >= _MOST_FAILED_ROUNDS
    else:
        is_last = is_counted and state.restarts >= limit
    if is_last:
        return replace(state, restart=None, outcome=outcome), ()
    pause_seconds = 0.0
    if quick > 1:
        pause_seconds = min(MOST_PAUSE_SECONDS, 2.0 ** min(quick - 2, _MOST_DOUBLINGS))
    # Also those that have exited with 0 are started again.
    known = [replace(each, is_done=False, generation=0) for each in state.workers.values()]
    state = replace(
        _count_failure(state, restart, lasted_seconds).with_records(known),
        restart=replace(restart, at=state.clock + pause_seconds),
        restarts=state.restarts + is_counted,
        losses=state.losses if restart.is_planned else _add_loss(state.losses, outcome),
        quick_rounds=quick,
        failed_rounds=failed,
        stopped=(),
        deadline=None,
    )
    slots = list_open_slots(state)
    if pause_seconds and _has_enough(state, slots):
        state, log = _tell(state, restart, f"{_describe_again(len(slots))} after {pause_seconds:g} s")
        return state, (log,)
    return state, ()


def _add_loss(losses: tuple[Outcome, ...], outcome: Outcome) -> tuple[Outcome, ...]:
    """The losses with this one, unless its worker is among them: the others have tried to continue without it."""
    if outcome.worker is not None and any(each.worker == outcome.worker for each in losses):
        return losses
    return (*losses, outcome)[-KEPT_LOSSES:]


def _count_failure(state: State, restart: Restart, lasted_seconds: float) -> State:
    """Count the loss against the slot that it names, and no other: the other workers may have ended because of it.

    It does not count after progress: steps together, or a long round of workers that never joined, whose steps are
    not known.
    """
    suspects, worker = state.blacklist.suspects, restart.outcome.worker
    state = replace(state, blacklist=replace(state.blacklist, suspects=()))
    if restart.is_planned or worker is None or (restart.is_blamed and worker.slot not in suspects):
        return state
    if not state.number and lasted_seconds >= _FAILING_SECONDS:
        return state
    if not state.policy.is_fixed:
        return count_slot_failure(state, worker.slot)
    return state


def start_round(state: State) -> tuple[State, Effects]:
    """Start all workers again, once their pause is over and there are enough slots."""
    restart = state.restart
    if restart is None or restart.at is None or state.clock < restart.at:
        return state, ()
    slots, needed = list_open_slots(state), state.policy.min_size
    if not _has_enough(state, slots):
        if state.short_since is not None and restart.is_told:
            return state, ()
        limit = f"{state.policy.recovery.elastic_timeout_seconds:g} s (--elastic-timeout)"
        state, log = _tell(state, restart, f"the job waits for slots: {len(slots)} of {needed}, at most {limit}")
        return replace(state, short_since=state.clock if state.short_since is None else state.short_since), (log,)
    state, log = _tell(state, restart, _describe_start(state, restart, len(slots)))
    before, state = state, replace(_clear(state), rounds=state.rounds + 1)
    state, launches = launch_round(state, slots, _describe_again(len(slots)))
    return state, (log, *_tell_lost_files(before, state), *launches)


def _tell_lost_files(before: State, state: State) -> Effects:
    """Warn if the last round had one host and this one does not continue with the files of its snapshots."""
    is_kept = state.files_since is not None and state.files_since < state.rounds
    if is_kept or before.number or len(before.round_hosts) != 1:
        return ()
    (host,) = before.round_hosts
    files, own = f"any files in HVD_SNAPSHOT_DIR of {host} are gone", "the script starts from its own checkpoint"
    if host not in before.hosts or host not in state.round_hosts:
        what = f"any snapshots of {host} are lost: {own}"
    elif state.round_hosts == before.round_hosts:
        what = f"{files}: {own}"
    else:  # a Snapshot may still have the state
        what = f"{files}, since the job has other hosts now"
    return (Log(what, Level.WARNING, host),)


def _tell(state: State, restart: Restart, what: str) -> tuple[State, Log]:
    """Log what follows from the loss. The first time the line names the loss, too."""
    known = replace(state, restart=None if state.restart is None else replace(state.restart, is_told=True))
    return known, Log(what if restart.is_told else f"{restart.outcome.reason.rstrip('.')}; {what}", Level.WARNING)


def _has_enough(state: State, slots: Sequence[Slot]) -> bool:
    return len(slots) >= state.policy.min_size


def launch_round(state: State, slots: Sequence[Slot], reason: str) -> tuple[State, Effects]:
    """Start a worker in each of these slots, together."""
    former = [state.workers.get(slot) for slot in slots]
    numbers = [1 if known is None else known.worker.incarnation + 1 for known in former]
    records = [
        WorkerRecord(Worker(slot, number), assignment, since=state.clock)
        for slot, number, assignment in zip(slots, numbers, rank(slots), strict=True)
    ]
    state = begin_round(state.with_slots(records), slots)
    for host in state.round_hosts:
        # An agent reports from its first worker on, and that may have been withdrawn before it began.
        if state.last_heard[host] is not None:
            state = renew_lease(state, host)
    return state, make_launches(state, records, reason)


def _clear(state: State) -> State:
    """The state as before the first generation, with the numbers, the losses and the closed slots of the job."""
    return replace(
        state.enter(Phase.FORMING),
        short_since=_keep_shortage(state),
        generation=None,
        decision=RecoveryDecision(Action.BEGIN),
        sequencer=None,
        failures=0,
        crash_loop=CrashLoop(),
        resets=0,
        restart=None,
        growing_since=None,
        stuck=(),
        logged_alone=False,
        logged_limit=({}, 0),
    )


def _describe_again(workers: int) -> str:
    if workers == 1:
        return "the only worker is started again"
    return "all workers are started again"


def _describe_start(state: State, restart: Restart, workers: int) -> str:
    limit = state.policy.restarts.limit
    what = "the only worker is" if workers == 1 else f"all {workers} workers are"
    if limit is None or restart.is_planned:
        left = ""
    else:
        left = f" ({limit - state.restarts} of {limit} restarts left)"
    if not state.number:
        how = "the script continues from its own checkpoint or snapshot"
    elif state.policy.restarts.has_checkpoint:
        how = "from the newest checkpoint, if there is one"
    else:
        how = "from the beginning or the script's own checkpoint"
    return f"{what} started again{left}{', ' if state.number else '; '}{how}"


def limit_restart(state: State) -> tuple[State, Effects]:
    """Count a host as lost whose workers cannot be killed, as in a system call that never returns."""
    if state.phase is not Phase.RESTARTING or state.deadline is None or state.now <= state.deadline:
        return state, ()
    late = next(iter(state.alive()), None)
    if late is None:
        return state, ()
    loss = Lost(late.worker.slot.host, f"its worker {late.worker} could not be stopped")
    return lose_host(state, loss, may_explain=False)


def limit_slots(state: State) -> tuple[State, Effects]:
    """End the job if there have been too few slots for the next round for as long as `--elastic-timeout` says."""
    limit_seconds, restart = state.policy.recovery.elastic_timeout_seconds, state.restart
    if restart is None or state.short_since is None or state.clock - state.short_since <= limit_seconds:
        return state, ()
    slots, needed = len(list_open_slots(state)), state.policy.min_size
    if restart.at is not None and slots >= needed:
        return state, ()
    option = "-np" if state.policy.is_fixed else "--min-np"
    outcome = run_short(slots, needed, limit_seconds, restart.outcome, option)
    return replace(state, outcome=outcome, restart=None), ()
