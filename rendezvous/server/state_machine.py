"""The state machine of a job: event -> step -> effects. It owns the state and the order of events.

Everything happens on one event loop, which is the lock. The effects about membership are published to the agents
through topics. The effects about processes are passed to `carry_out`, the launcher's part. Effects are performed in the
order of their events, each once; one that fails does not hold up the others. With a journal they wait until the state
after their event is durable, and so do the answers of calls (commits.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from signal import valid_signals
from typing import Any

from protos import rendezvous_pb2 as pb
from rendezvous.core import membership
from rendezvous.core.holds import holds, list_audience, restore
from rendezvous.core.messages import (
    Dismiss,
    Effect,
    Effects,
    Event,
    Exited,
    IllegalEventError,
    Noticed,
    Publish,
    Reported,
    SequencerLost,
    Signalled,
    WorldOpened,
)
from rendezvous.core.model import Policy
from rendezvous.core.state import State
from rendezvous.errors import WireError
from rendezvous.server.agent_streams import AgentStream, AgentStreams, KeepShown, NoteTaken
from rendezvous.server.commits import Commits, StateWriter, Step
from rendezvous.wire import codec
from rendezvous.wire.notifications import Topic, Topics
from rendezvous.wire.orders import agent_identity
from rendezvous.wire.tasks import TaskDispatcher

_LEFT_ITS_TASK = "its process ended with exit code 0 before its function had returned, as after os._exit(0)"

NoteStep = Callable[[Event | None, State, Effects], None]


@dataclass(frozen=True, slots=True)
class Term:
    """The time of one server of a job: what the former one has left, and what the next one needs.

    number: from 1; agents that know a later term refuse this one's answers.
    journal: where the state outlives the server; None for nowhere.
    state: with which the former server has ended; None for a new job.
    secret: of the job, from which the keys of generations follow; None for a random one.
    shown: the numbers of the agents' last messages that were shown in former terms, by the agents' identities; 0 for an
        agent that has started a worker.
    keep_shown: notes for the next server that a message of an agent was shown, and then calls.
    note_taken: is told which message of an agent is shown next.
    """

    number: int = 1
    journal: StateWriter | None = None
    state: State | None = None
    secret: bytes | None = None
    shown: Mapping[str, int] = field(default_factory=dict)
    keep_shown: KeepShown | None = None
    note_taken: NoteTaken | None = None


class StateMachine:
    """The state of one job, and what follows from each event.

    Args:
        policy: the job's settings.
        carry_out: is called with each effect that others carry out.
        tasks: the functions that the workers run; None for a job that runs a program.
        note_step: is told of each event, with the state that it has led to, and the effects, which are performed later;
            the event is None for the state that a former server has left, and what holds there.
        term: which server of the job this is.

    term_number: that of the term.
    state: the present one, which may not be durable yet.
    streams: to the agents that outlive their launcher.
    """

    def __init__(
        self,
        policy: Policy,
        carry_out: Callable[[Effect], None],
        tasks: TaskDispatcher | None,
        note_step: NoteStep | None,
        term: Term,
    ) -> None:
        self.term_number = term.number
        self.tasks = tasks
        self.streams = AgentStreams(term.shown, term.keep_shown, term.note_taken)
        self.state: State = membership.begin(policy) if term.state is None else _continue(term.state, term.shown)
        self._is_resuming = term.state is not None
        self._held: Publish | None = None  # of the generation that a former server has published
        self._commits = None if term.journal is None else Commits(term.journal, self._perform_steps, self.fail)
        self._carry_out = carry_out
        self._note_step = note_step
        self._topics = Topics(term.secret)
        self._last_reports: dict[str, int] = {}
        self._tenures = dict(self.state.tenures)  # by host, how many of its agents have been dismissed
        self._left = {  # those of them whose host was not lost: they may end in peace
            agent_identity(host, tenure).encode() for host, left in self.state.left.items() for tenure in left
        }
        self._effects: deque[Effect] = deque()
        self._is_performing = False
        self._failure: BaseException | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._owner_was_stopped = False

    def submit(self, event: Event) -> None:
        """Step the core with an event and perform the effects; effects of events submitted meanwhile come after these.

        With a journal this returns before, and `settle` waits for that.

        Raises:
            IllegalEventError: the event contradicts the state; nothing has changed.
            Exception: the first one that `carry_out` raised; all other effects have been performed.
        """
        match event:
            case Exited(worker, 0) if self.tasks is not None and not self.tasks.is_done(worker):
                event = replace(event, returncode=1, error=_LEFT_ITS_TASK)
        former = self.state
        self.state, effects = membership.step(former, event)
        self._take(former, Step(event, self.state, effects))

    async def settle(self) -> None:
        """Wait until the state is durable, and the effects have been performed; without a journal they are."""
        if self._commits is not None:
            await self._commits.settle()

    def fail(self, error: BaseException) -> None:
        """End the owner's `async with` block, which raises this: without clock or orders the job would hang."""
        if self._failure is None:
            self._failure = error
            if self._owner is not None:
                self._owner_was_stopped = self._owner.cancel()

    def topic(self, host: str) -> Topic:
        """The notifications for the members on one host."""
        return self._topics.of(host)

    def number_agent(self, host: str) -> int:
        """The number that the certificate of this host's agent must have: 1 plus the number of dismissed agents.

        An agent that was cut off and replaced may reconnect: it is refused, and kills its workers.
        """
        return self._tenures.get(host, 0) + 1

    def expects(self, host: str, identities: Collection[bytes]) -> bool:
        """These are the identities of the host's present agent, whose dismissal has not even been decided."""
        return agent_identity(host, _find_number(self.state, host)).encode() in identities

    def has_left(self, identities: Iterable[bytes]) -> bool:
        """The job has left the host whose agent has these identities.

        The agent has no workers. It needs a server until their output has been read, and its calls have no effect.
        """
        return not self._left.isdisjoint(identities)

    def stream(self, host: str, identities: Iterable[bytes] = ()) -> AgentStream:
        """The stream of the host's agent.

        identities: of a caller; a former agent has its own stream, if the job has left its host.
        """
        for identity in self._left.intersection(identities):
            return self.streams.of(identity.decode())
        return self.streams.of(agent_identity(host, self.number_agent(host)))

    def receive(self, report: pb.AgentReport) -> None:
        """Submit what an agent reports: its signal, which explains the exits, these, then the heartbeat.

        A report older than the last one is ignored.

        Raises:
            WireError: the report is malformed; nothing has changed.
            IllegalEventError: it is about another host's worker, and nothing has changed; or it contradicts the state,
                and the exits before the contradiction have been submitted.
        """
        if not report.number:
            raise WireError("a report without number")
        if report.number <= self._last_reports.get(report.host, 0):
            return

        tenure = _find_number(self.state, report.host)
        exits = [codec.decode(Exited, exited) for exited in report.exited]
        running = tuple(codec.decode_worker(worker) for worker in report.running)
        for exited in exits:
            if exited.worker.slot.host != report.host:
                raise IllegalEventError(exited, f"worker {exited.worker} is not on host {report.host}")
        if report.signal and report.signal not in valid_signals():
            raise WireError(f"{report.signal} is no signal")

        signals = (Signalled(report.host, report.signal),) if report.signal else ()
        worlds = (WorldOpened(report.host),) if report.has_world else ()
        sequencers = (SequencerLost(report.host, report.sequencer_end),) if report.sequencer_end else ()
        for event in (*signals, *worlds, *sequencers, *exits):
            self.submit(event)
        # These were its last workers, and the job has left it.
        if _find_number(self.state, report.host) != tenure:
            return

        self.submit(Reported(report.host, running))
        self._last_reports[report.host] = report.number
        if report.noticed:
            self.submit(Noticed(report.host))  # may dismiss the agent; the next one numbers its reports from 1

    async def resume(self) -> None:
        """Perform what holds, once, where a former server has ended. Nobody reaches this one before."""
        if not self._is_resuming:
            return
        self._is_resuming = False
        effects = holds(self.state)
        self._held = next((effect for effect in effects if isinstance(effect, Publish)), None)
        self._take(None, Step(None, self.state, effects))
        await self.settle()

    def _take(self, former: State | None, step: Step) -> None:
        if self._commits is None:
            self._perform_steps((step,))
        else:
            self._commits.add(former, step)

    def _perform_steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if self._note_step is not None:
                self._note_step(step.event, step.state, step.effects)
            self._effects.extend(step.effects)
        if not self._is_performing:
            self._perform_all()

    def _perform_all(self) -> None:
        errors: list[Exception] = []
        self._is_performing = True
        try:
            while self._effects:
                try:
                    self._perform(self._effects.popleft())
                except Exception as error:  # noqa: BLE001 - raised when the others have been performed
                    errors.append(error)
        finally:
            self._is_performing = False
        if errors:
            raise errors[0]

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Dismiss):
            if not effect.is_lost:
                self._left.add(agent_identity(effect.host, effect.tenure).encode())
            self._tenures[effect.host] = max(self._tenures.get(effect.host, 0), effect.tenure)
            self._last_reports.pop(effect.host, None)  # the next one numbers its reports from 1
            self._topics.forget(effect.host)
        if effect is self._held:
            self._topics.repeat(self._held, list_audience(self.state))
        elif not self._topics.publish(effect):
            self._carry_out(effect)


def _continue(state: State, shown: Mapping[str, int]) -> State:
    """The state of a former server, as this one continues from it."""
    return restore(state, [host for host in state.hosts if agent_identity(host, _find_number(state, host)) in shown])


def _find_number(state: State, host: str) -> int:
    return state.tenures.get(host, 0) + 1
