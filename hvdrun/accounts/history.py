"""The history of a job, from its events: its sizes, its losses, and its workers with their last accounts; pure.

All times are seconds since the job's start.
"""

from dataclasses import dataclass

from rendezvous.core.messages import Dismiss, Effects, Event, Exited, Finish, Launch, Publish, Reported
from rendezvous.core.model import Worker
from rendezvous.core.outcome import Outcome
from rendezvous.core.state import State
from rendezvous.wire.accounts import Account, AccountsReported


@dataclass(frozen=True, slots=True)
class Size:
    """How many workers the job has, from a moment on.

    at: that moment.
    round: how many times all workers had been started again.
    generation: the one that begins; 0 where the workers are only started.
    """

    at: float
    workers: int
    round: int
    generation: int = 0


@dataclass(slots=True)
class Loss:
    """A worker or a host was lost, and the job continued or tried to.

    at: when the launcher knew it.
    detect_seconds: from the report of the exit, or the last report of the host, until the others were interrupted.
    continued_at: when the next generation was published, or all workers ran again; None before that.
    generation: the one with which the job has continued; 0 where all workers were started again.
    """

    at: float
    outcome: Outcome
    detect_seconds: float
    continued_at: float | None = None
    generation: int = 0


@dataclass(slots=True)
class WorkerHistory:
    """One worker, from its start.

    rank: the last one that it had.
    ended: when its end was reported; None while it runs, or its host was lost.
    account: the last one that its agent has sent; None if none has come.
    has_run: its process was started.
    """

    worker: Worker
    rank: int
    started: float
    ended: float | None = None
    returncode: int | None = None
    account: Account | None = None
    has_run: bool = False


class History:
    """Takes the events of one job.

    end: how the job ended; None while it runs, and where it did not start.
    """

    def __init__(self) -> None:
        self.sizes: list[Size] = []
        self.losses: list[Loss] = []
        self.workers: dict[Worker, WorkerHistory] = {}
        self.end: Finish | None = None
        self._hosts: dict[int, str] = {}  # by rank: where its last worker ran
        self._heard: dict[str, float] = {}  # by host: when it last reported
        self._round = -1
        self._known: tuple[Outcome, ...] = ()  # the losses that were noted already
        self._open: list[Loss] = []  # those after which the job has not continued yet
        self._stopped: tuple[float, float] | None = None  # when all workers were stopped, and how long detection took
        self._awaited: set[Worker] = set()  # of a restart: those that do not run yet

    def resume(self, state: State, now: float) -> None:
        """Go on from the state of a former server, which may have noted fewer events, and some of them late."""
        known, losses = self._known, state.losses
        # Equal losses are other objects here, and each list has the last losses only.
        sizes = range(min(len(known), len(losses)), -1, -1)
        overlap = next(size for size in sizes if known[len(known) - size :] == losses[:size])
        self._known = losses[:overlap]
        # The last one has heard hosts since it noted anything, and each lease begins again.
        self._heard = dict.fromkeys(self._heard, now)
        # A host that was heard has its orders.
        heard = {worker for worker in self._awaited if state.last_heard.get(worker.slot.host) is not None}
        self._awaited -= heard
        if heard and not self._awaited:
            self._continue(now)

    def list_untold(self, state: State) -> tuple[Outcome, ...]:
        """The losses that the former server had decided on, and could neither note nor tell; call `resume` before."""
        return state.losses[len(self._known) :]

    def note(self, event: Event | None, state: State, effects: Effects, now: float) -> None:
        """Note an event with the state and the effects that it has led to; None where a former server had it."""
        self._note_losses(state, now)
        match event:
            case Reported(host):
                self._heard[host] = now
            case Exited(worker, returncode) if (known := self.workers.get(worker)) is not None:
                if known.ended is None:
                    known.ended, known.returncode = now, returncode
            case _:
                pass
        for effect in effects:
            match effect:
                case Launch():
                    self._note_launch(effect, now)
                case Publish():
                    self._note_generation(effect, now)
                case Dismiss(host):
                    self._heard.pop(host, None)  # the next agent there has not reported
                case _:
                    pass

    def list_ranks(self) -> dict[Worker, int]:
        """The last rank of each worker, also of one whose slot has another by now: its output may come later."""
        return {worker: known.rank for worker, known in self.workers.items()}

    def count(self) -> int:
        """How many sizes, losses and workers there are."""
        return len(self.sizes) + len(self.losses) + len(self.workers)

    def note_started(self, worker: Worker, now: float) -> bool:
        """Note that the process of a worker runs; returns True if it is the last one of a restart."""
        if (known := self.workers.get(worker)) is not None:
            known.has_run = True
        if worker in self._awaited:
            self._awaited.discard(worker)
            if not self._awaited:
                self._continue(now)
                return True
        return False

    def note_accounts(self, reported: AccountsReported) -> bool:
        """Take accounts, each in place of an earlier one; returns whether one is the last of a worker."""
        is_last = False
        for account in reported.accounts:
            if (known := self.workers.get(account.worker)) is not None:
                known.account = account
                is_last = is_last or known.ended is not None
        return is_last

    def find_host(self, rank: int) -> str:
        """Where the last worker of a rank ran; "" if there was none."""
        return self._hosts.get(rank, "")

    def _note_losses(self, state: State, now: float) -> None:
        if state.restart is not None and self._stopped is None:
            self._stopped = now, self._measure_detection(state.restart.outcome, now)
        for outcome in _find_new(state.losses, self._known):
            at, detect_seconds = now, self._measure_detection(outcome, now)
            # A loss that starts all workers again is listed when they have ended.
            if self._stopped is not None:
                at, detect_seconds = self._stopped
            loss = Loss(at, outcome, detect_seconds)
            self.losses.append(loss)
            self._open.append(loss)
        self._known = state.losses
        if state.restart is None:
            self._stopped = None

    def _measure_detection(self, outcome: Outcome, now: float) -> float:
        if outcome.host is None:
            return 0.0
        return now - self._heard.get(outcome.host, now)

    def _note_launch(self, launch: Launch, now: float) -> None:
        worker, assignment = launch.worker, launch.assignment
        if worker in self.workers:
            return
        self.workers[worker] = WorkerHistory(worker, assignment.rank, now)
        self._hosts[assignment.rank] = worker.slot.host
        if launch.round is None:
            return
        if launch.round.number > self._round:
            self._round = launch.round.number
            self._awaited.clear()
            self.sizes.append(Size(now, assignment.size, self._round))
        if self._round:
            self._awaited.add(worker)

    def _note_generation(self, publish: Publish, now: float) -> None:
        generation = publish.generation
        if any(each.generation == generation.number for each in self.sizes):
            return  # another server publishes it again
        self.sizes.append(Size(now, len(generation.members), max(self._round, 0), generation.number))
        for rank, worker in enumerate(generation.members):
            self._hosts[rank] = worker.slot.host
            if (known := self.workers.get(worker)) is not None:
                known.rank = rank
        if not self._awaited:
            self._continue(now, generation.number)

    def _continue(self, now: float, generation: int = 0) -> None:
        for loss in self._open:
            loss.continued_at, loss.generation = now, generation
        self._open.clear()


def _find_new(losses: tuple[Outcome, ...], known: tuple[Outcome, ...]) -> list[Outcome]:
    if losses is known:
        return []
    return [each for each in losses if not any(each is other for other in known)]
