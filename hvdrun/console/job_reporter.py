"""Tells a person what becomes of a job: a line for each change of an elastic one, and why it did not end well."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from hvdrun.console.console import Console
from hvdrun.console.host_news import LossCounter, describe_changes, describe_closed, describe_limit
from hvdrun.console.page import Page, describe_ranks
from hvdrun.spec.hosts import count_slots
from hvdrun.spec.jobspec import JobSpec
from rendezvous.core.failures import Blacklist
from rendezvous.core.lifecycle import Phase
from rendezvous.core.messages import Dismiss, Event, Exited, Joined, Launch, Level, Log
from rendezvous.core.model import Generation, Host, Slot, Worker
from rendezvous.core.outcome import TEMPORARY_FAILURE, Cause, Outcome
from rendezvous.core.reports import Decision
from rendezvous.core.state import State

_HOPELESS = frozenset({Cause.STATE_LOST, Cause.FAILS_AGAIN})
_PLANNED = frozenset({Decision.BEGIN, Decision.RESIZE})  # by the program, or at its commit
_REMEMBERED = 5  # losses that the last page names


class RankTable:
    """Knows the rank of every worker that was ever launched.

    It is that of the newest generation; of a worker that is in none yet, or no more, the last one it had or was
    launched with.

    look: the newest generation, None before the first.
    """

    def __init__(self, look: Callable[[], Generation | None]) -> None:
        self._look = look
        self._read: Generation | None = None
        self._ranks: dict[Worker, int] = {}

    def note_launch(self, launch: Launch) -> None:
        """A worker is to be started."""
        self._ranks.setdefault(launch.worker, launch.assignment.rank)

    def rank_of(self, worker: Worker) -> int:
        """The rank of a worker; 0 for one that nobody has launched."""
        generation = self._look()
        if generation is not None and generation is not self._read:
            self._read = generation
            self._ranks.update((member, rank) for rank, member in enumerate(generation.members))
        return self._ranks.get(worker, 0)

    def forget(self, worker: Worker) -> None:
        """Nobody will ask for this one any more."""
        self._ranks.pop(worker, None)


class JobReporter:
    """The one voice that speaks of the job's fate.

    ranks: which rank each worker has.
    """

    def __init__(
        self, spec: JobSpec, console: Console, ranks: RankTable, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_elastic = spec.is_elastic
        self._size = spec.workers.size
        self._timeout_seconds = 0.0 if spec.limits.elasticity is None else spec.limits.elasticity.timeout_seconds
        self._console = console
        self._ranks = ranks
        self._clock = clock
        self._started = clock()
        self._decided: float | None = None  # when it was decided how the job ends
        self._ended_ranks: set[int] = set()
        self._ended_well: set[Worker] = set()  # members of an elastic job
        self._hosts = spec.workers.hosts
        self._incarnations: dict[Slot, int] = {}  # the highest of each slot that was spoken of
        self._generation = 0  # the last that was spoken of, and its members
        self._members: frozenset[Worker] = frozenset()
        self._trouble = ""  # of which a member of it has told first
        self._losses: deque[str] = deque(maxlen=_REMEMBERED)
        self._repeated = LossCounter(clock)
        self._held: list[str] = []  # losses of hosts, until it is known whether the last page says the same
        self._blacklist = Blacklist()  # what was spoken of
        self._limited: tuple[object, ...] = ()  # the hosts, and the generation, of which was told what the limit leaves
        self._lost: set[str] = set()  # hosts whose loss was told, until one of their workers is launched again

    def start(self) -> None:
        """The job begins now."""
        self._started = self._clock()

    def note_interrupt(self, workers: int) -> None:
        """Ctrl-C was pressed, and so many workers are to be ended."""
        self._console.hush_interrupts()
        if workers:
            who, them = ("1 worker", "it") if workers == 1 else (f"{workers} workers", "them")
            self._console.notice(f"stopping {who}; Ctrl-C again stops {them} immediately.")

    def decide(self) -> None:
        """From now on it is only a matter of time until the job ends."""
        self._decided = self._decided or self._clock()

    def note_end_ordered(self, worker: Worker) -> None:
        """This worker is to be ended because of how the job ends; one that has not joined the others has no rank."""
        if not self._members or worker in self._members:
            self._ended_ranks.add(self._ranks.rank_of(worker))

    def note_launch(self, launch: Launch) -> None:
        """A worker is to be started; an order may come again, and is told once."""
        self._tell_held()
        worker = launch.worker
        self._console.verbose(f"launch {worker}: {launch.reason}")
        self._lost.discard(worker.slot.host)
        if worker.incarnation > self._incarnations.get(worker.slot, 1):
            self._incarnations[worker.slot] = worker.incarnation
            if worker.slot.host not in self._repeated.counted:
                self._console.notice(f"the worker in the slot {worker.slot} is started again.")

    def log(self, log: Log) -> None:
        """The core has something to tell."""
        self._tell_held()
        if log.level is Level.WARNING:
            self._losses.append(log.sentence)
        (self._console.verbose if log.level is Level.DEBUG else self._console.notice)(f"{log.sentence}.")

    def note_dismissal(self, dismiss: Dismiss) -> None:
        """A host's agent is let go, or was lost."""
        if dismiss.level is Level.WARNING:
            self._lose_host(dismiss.host, dismiss.reason)
        else:
            self._console.verbose(f"the agent on {dismiss.host} is let go: {dismiss.reason}")

    def note_event(self, event: Event, state: State) -> None:
        """This is about to happen, in this state; what is no news in it is told to nobody."""
        if not self._is_elastic or state.outcome is not None:
            return
        match event:
            case Exited(worker, returncode) if state.ends_well(returncode) and worker in self._members:
                self._ended_well.add(worker)
            case Joined(_, after, report) if after == state.number and not self._trouble:
                self._trouble = " ".join(report.error.split())  # it may have the program's own words
            case _:
                pass

    def note_state(self, state: State) -> None:
        """This is what has become of the job: which of its places are closed, whether it goes on in a generation."""
        self._tell_held(state.outcome)
        if self._is_elastic and state.outcome is None and state.blacklist is not self._blacklist:
            for sentence in describe_closed(state, self._blacklist, self._lost, self._repeated.counted):
                self._console.notice(f"{sentence}.")
            self._blacklist = state.blacklist
        generation = state.generation
        if generation is not None and generation.number > self._generation:
            if self._generation and self._is_elastic:
                self._tell_how_it_goes_on(state, frozenset(generation.members))
            self._generation, self._members, self._trouble = generation.number, frozenset(generation.members), ""
        if self._is_elastic and state.phase is Phase.RUNNING and not state.may_reset:
            self._tell_limit(state)

    def note_hosts(self, hosts: Sequence[Host]) -> None:
        """The script names these hosts from now on."""
        if not self._hosts:
            self._tell_shortage(sum(host.slots for host in hosts))
        else:
            for change in describe_changes(self._hosts, hosts):
                self._console.notice(f"{change}.")
        self._hosts = tuple(hosts)

    def note_agents(self, hosts: Sequence[Host]) -> None:
        """These hosts have agents that have come by themselves, which is told elsewhere."""
        self._hosts = tuple(hosts)

    def explain(self, outcome: Outcome, hosts: int) -> None:
        """Say why the job did not end well; `hosts` have workers."""
        if outcome.cause is Cause.WORKER_FAILED and outcome.worker is not None and outcome.rank is not None:
            self._show_page(outcome, outcome.worker, outcome.rank)
            return
        if outcome.cause is Cause.SUCCEEDED or outcome.is_interrupt:
            return
        place = ""
        if outcome.cause is Cause.COMMAND_NOT_STARTED and outcome.worker is not None and hosts > 1:
            place = f"on the host {outcome.worker.slot.host!r}, "
        is_hopeless = outcome.exit_code == TEMPORARY_FAILURE and outcome.cause is not Cause.STOPPED
        if self._is_elastic and (is_hopeless or outcome.cause in _HOPELESS):
            self._show_hopeless(outcome)
        else:
            self._console.notice(f"{place}{outcome.reason.rstrip('.')}.")

    def _tell_how_it_goes_on(self, state: State, members: frozenset[Worker]) -> None:
        """Of a generation that was formed anew. Whose loss has led to it was told; where nobody was lost, say why.

        Where all have called `init()` again, or begun again at a commit, and nobody has come or gone, nothing happened.
        """
        trouble = self._trouble
        if trouble and state.verdict.decision is Decision.RESTORE:
            trouble = " ".join(state.verdict.reason.split())  # which says as well who has returned to its last commit
        if trouble and self._members <= members:
            self._console.notice(f"{trouble.rstrip('.')}.")
        if trouble or members != self._members or state.verdict.decision not in _PLANNED:
            count = len(members)
            self._console.notice(f"the job goes on with {count} worker{'' if count == 1 else 's'}.")

    def _tell_limit(self, state: State) -> None:
        """What becomes of hosts that come or go when the job may not be formed anew any more."""
        if self._limited != (state.offered, state.generation):
            self._limited = (state.offered, state.generation)
            if sentence := describe_limit(state):
                self._console.notice(f"{sentence}.")

    def _lose_host(self, host: str, sentence: str) -> None:
        self._lost.add(host)
        self._losses.append(sentence.rstrip("."))
        if self._repeated.note(host, sentence.rstrip(".")):
            self._held.append(sentence.rstrip("."))
        else:
            self._console.verbose(f"{sentence.rstrip('.')}.")

    def _tell_held(self, outcome: Outcome | None = None) -> None:
        """Tell of hosts that were lost, but for what the page about this outcome tells."""
        held, self._held = self._held, []
        for sentence in held:
            if outcome is None or not _tells(outcome, sentence):
                self._console.notice(f"{sentence}.")
        for sentence in self._repeated.sum_up(is_last=outcome is not None):
            self._console.notice(f"{sentence}.")

    def _tell_shortage(self, slots: int) -> None:
        if slots < self._size:
            self._console.notice(
                f"the hosts offer {slots} of the {count_slots(self._size)} that the job starts with: it waits for "
                f"more, up to {self._timeout_seconds:g} s (--elastic-timeout)."
            )

    def _show_hopeless(self, outcome: Outcome) -> None:
        """The job could not go on with those that were left."""
        notes = [f"Lost before: {sentence}." for sentence in self._losses if not _tells(outcome, sentence)]
        if outcome.exit_code == TEMPORARY_FAILURE:
            notes.append(f"Exit code {TEMPORARY_FAILURE}: it may go on when it is started again.")
        self._console.page(
            Page(
                reason=outcome.reason,
                last_lines=() if outcome.worker is None else self._console.output.tail(outcome.worker),
                ended_ranks=tuple(sorted(self._ended_ranks)),
                notes=tuple(notes),
            )
        )

    def _show_page(self, outcome: Outcome, worker: Worker, rank: int) -> None:
        others = [self._ranks.rank_of(ended) for ended in self._ended_well]
        who = describe_ranks(others).capitalize()
        note = f"{who} ended with 0; but the job had not gone on without this one, and ends with its failure."
        self._console.page(
            Page(
                rank=rank,
                host=worker.slot.host,
                slot=worker.slot.index,
                returncode=outcome.returncode,
                seconds=(self._decided or self._clock()) - self._started,
                last_lines=self._console.output.tail(worker),
                ended_ranks=tuple(sorted(self._ended_ranks)),
                notes=(note,) if others else (),
            )
        )


def _tells(outcome: Outcome, loss: str) -> bool:
    """The outcome's reason says this already: of a worker perhaps in other words."""
    who = f"rank {outcome.rank} ({outcome.worker}) "
    return loss in outcome.reason or (who in outcome.reason and loss.startswith(f"{who}was lost"))
