"""What the user reads at the end of a job: its sentence, or the page of the worker that failed first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rendezvous.core.messages import Explanation, Finish
from rendezvous.core.model import Generation
from rendezvous.core.outcome import TEMPORARY_FAILURE, Cause, Outcome, describe_ranks
from rendezvous.core.state import State

_REPEATED = frozenset({Cause.STATE_LOST, Cause.FAILS_AGAIN})  # a new job would end in the same way


def explain_end(state: State, outcome: Outcome) -> Finish:
    """The end of the job, with what the user reads about it."""
    if outcome.cause is Cause.SUCCEEDED or outcome.is_interrupt:
        return Finish(outcome)
    policy, worker = state.policy, outcome.worker
    reason = f"{_describe_pause(state, outcome)}{outcome.reason.rstrip('.')}"
    done = {each.assignment.rank: each for each in state.workers.values() if each.is_done and state.is_member(each)}
    stopped = tuple(rank for rank in state.stopped if rank not in {*done, outcome.rank})

    if outcome.cause is Cause.WORKER_FAILED:
        successes = [rank for rank, record in done.items() if record.returncode != TEMPORARY_FAILURE]
        return _explain_failure(state, outcome, successes, stopped)
    may_continue = outcome.exit_code == TEMPORARY_FAILURE and outcome.cause is not Cause.STOPPED
    if policy.outlives_losses and (may_continue or outcome.cause in _REPEATED):
        notes = ((_describe_rounds(len(state.workers), state.rounds),) if state.rounds else ()) + _list_losses(
            state.losses, outcome
        )
        if may_continue:
            notes += (f"Exit code {TEMPORARY_FAILURE}: the job may continue when you start it again.",)
        return Finish(outcome, Explanation.RECOVERY_PAGE, reason, stopped, notes)

    if outcome.cause is Cause.COMMAND_NOT_STARTED and worker is not None and len(state.hosts) > 1:
        reason = f"on the host {worker.slot.host!r}, {reason}"
    return Finish(outcome, Explanation.SENTENCE, reason)


def _describe_pause(state: State, outcome: Outcome) -> str:
    """That hvdrun itself did not run shortly before a host was lost; "" where it did."""
    ended, seconds = state.last_pause or (state.now, 0.0)
    is_recent = state.now - ended <= state.policy.grace_seconds + state.policy.lease_seconds
    return describe_pause(seconds) if outcome.cause is Cause.HOST_LOST and seconds and is_recent else ""


def _explain_failure(state: State, outcome: Outcome, successes: Sequence[int], stopped: tuple[int, ...]) -> Finish:
    """The end of a job by the failure of a worker, or by what this worker failed because of."""
    reported = (f"Its program reported (@record): {outcome.message}",) if outcome.message else ()
    culprit, sentence = find_culprit(outcome, state.generation, state.sequencer_loss)
    if not culprit and outcome.returncode is None:
        sentence = outcome.reason.rstrip(".")

    followers = {rank: why for rank, why in state.followers if rank != outcome.rank}
    notes = tuple(describe_followers(followers))
    if outcome.blame is not None and culprit:
        ended = [rank for rank in successes if rank in outcome.blame.ranks]
        if "ended with 0" not in sentence:  # else its own worker has said so
            notes += describe_successes(ended, outcome, was_needed=False)
    else:
        was_needed = state.policy.is_elastic or stopped != state.stopped
        notes += describe_successes(successes, outcome, was_needed=was_needed)
    if state.rounds:
        notes += (_describe_rounds(len(state.workers), state.rounds), *_list_losses(state.losses, outcome))
    left = tuple(rank for rank in stopped if rank not in followers)
    return Finish(outcome, Explanation.WORKER_PAGE, sentence, left, reported + notes, culprit)


def _describe_rounds(workers: int, rounds: int) -> str:
    """How often all workers have been started again."""
    who = "The only worker" if workers == 1 else "All workers"
    return f"{who} had been started again {'once' if rounds == 1 else f'{rounds} times'}."


def _list_losses(losses: Iterable[Outcome], outcome: Outcome) -> tuple[str, ...]:
    """The other losses."""
    before = [each for each in losses if (each.worker, each.host) != (outcome.worker, outcome.host)]
    return tuple(f"Lost before: {each.reason.rstrip('.')}." for each in before)


def find_culprit(outcome: Outcome, generation: Generation | None, lost: tuple[str, str] | None) -> tuple[str, str]:
    """What the outcome's worker failed because of, as a subject, and how; "" where it failed by itself.

    lost: the host of the sequencer that has ended, and how it did; None while it lives.
    """
    blame = outcome.blame
    if blame is None or generation is None:
        return "", ""
    ranks = [rank for rank in blame.ranks if rank < len(generation.members) and rank != outcome.rank]
    if len(ranks) == 1:
        slot = generation.members[ranks[0]].slot
        return f"rank {ranks[0]} on {slot.host} (slot {slot.index})", blame.reason
    if ranks:
        return describe_ranks(ranks), blame.reason
    if lost is not None:
        return f"the sequencer on {lost[0]}, which orders the workers' collectives,", lost[1]
    here, there = outcome.worker, generation.members[0]
    if here is not None and here.slot.host != there.slot.host:
        return f"the network between {here.slot.host} and {there.slot.host}", blame.reason
    return "", ""


def describe_followers(followers: Mapping[int, str]) -> Iterator[str]:
    """Which ranks have failed later; because of the first failure where their errors say so."""
    because = {rank: why for rank, why in followers.items() if why}
    if because:
        why = next(iter(because.values()))
        yield f"{describe_ranks(because).capitalize()} failed afterwards, because of that ({why})."
    if others := followers.keys() - because.keys():
        yield f"{describe_ranks(others).capitalize()} failed afterwards."


def describe_successes(done: Sequence[int], outcome: Outcome, *, was_needed: bool) -> tuple[str, ...]:
    """Which members have exited with 0, or would have, if any have.

    was_needed: the others could have continued, had the worker that failed been replaced.
    """
    if not done:
        return ()
    which = describe_ranks(done).capitalize()
    if not was_needed:
        return (f"{which} had ended with 0 before.",)
    rest = f"but the job could not continue without rank {outcome.rank}, and ends with its failure."
    return (f"{which} ended with 0, {rest}",)


def describe_pause(seconds: float) -> str:
    """What stands before the loss of a host that hvdrun itself has caused.

    Message: hvdrun did not run for SECONDS s (it was stopped, or its machine slept): host HOST was lost: HOW
    Cause: hvdrun was stopped, by Ctrl-Z or SIGSTOP, or its machine slept, for longer than the hosts wait.
    Remedy: Start the job again. Raise `--launcher-timeout` where such stops are usual.
    """
    return f"hvdrun did not run for {seconds:.1f} s (it was stopped, or its machine slept): "
