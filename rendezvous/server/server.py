"""The rendezvous server: call -> event -> step -> effects. It owns the clock, the state and the order of events.

Everything happens on one event loop, which is the lock. The effects about membership are published to the agents
through topics. The effects about processes are passed to `carry_out`, the launcher's part. Effects are performed in the
order of their events, each once; one that fails does not hold up the others. With a journal they wait until the state
after their event is durable, and so do the answers of calls (commits.py).

Any program that reaches a port can connect. Without the job's certificate it gets no further than the handshake, which
has a time limit. It costs one connection, and nothing is printed.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from rendezvous.server import serving  # imported before gRPC, whose log it turns off

# isort: split
import grpc

from protos import rendezvous_pb2 as pb
from protos import rendezvous_pb2_grpc as pb_grpc
from rendezvous.core import membership
from rendezvous.core.holds import holds, list_audience, restore
from rendezvous.core.messages import (
    Declared,
    Dismiss,
    Effect,
    Effects,
    Event,
    Exited,
    IllegalEventError,
    Joined,
    Noticed,
    Publish,
    Reported,
    SequencerLost,
    SequencerOpened,
    Signalled,
    Ticked,
    WorldOpened,
)
from rendezvous.core.model import Policy
from rendezvous.core.outcome import SIGNALS
from rendezvous.core.state import State
from rendezvous.errors import ListenError, WireError
from rendezvous.server.agent_streams import AgentStream, AgentStreams, KeepShown, NoteTaken
from rendezvous.server.commits import Commits, StateWriter, Step
from rendezvous.server.file_limit import count_connections
from rendezvous.wire import codec
from rendezvous.wire.notifications import Topic, Topics
from rendezvous.wire.orders import TERM, Credential, agent_identity
from rendezvous.wire.tasks import OutcomeHead, TaskDispatcher

TICK_SECONDS = 0.25
HANDSHAKE_SECONDS = 10.0  # for a caller to show its certificate: a busy host on a slow line needs one or two
# The largest message is the report of a host on which no command was found, each with the PATH that was searched: 4 KB
# for each of 1,000 slots.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# Calls that have arrived and have not started. By default gRPC refuses some beyond 1,000 and all beyond 3,000, and a
# job's workers join at the same moment. A call needs a certificate.
_MOST_PENDING_CALLS = 1_000_000
_LEFT_ITS_TASK = "its process ended with exit code 0 before its function had returned, as after os._exit(0)"
_KEEPALIVE_SECONDS = 10.0  # an agent that vanished keeps its connection for twice this; the core counts its lease
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server could bind the same port unnoticed
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.server.max_pending_requests", _MOST_PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", _MOST_PENDING_CALLS),
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
    ("grpc.keepalive_time_ms", int(_KEEPALIVE_SECONDS * 1000)),
    ("grpc.keepalive_timeout_ms", int(_KEEPALIVE_SECONDS * 1000)),
    ("grpc.http2.ping_timeout_ms", int(_KEEPALIVE_SECONDS * 1000)),  # counts as well, and is 60 s else
    ("grpc.http2.max_ping_strikes", 0),  # agents ping as often as their lease needs, and have a certificate
)


class Server:
    """Serves one job's membership; an asynchronous context manager, which closes its ports and stops its clock.

    Args:
        policy: the job's settings.
        carry_out: is called with each effect that others carry out.
        credential: the server's certificate and key.
        tasks: the functions that the workers run; None for a job that runs a program.
        note_step: is told of each event, with the state that it has led to, and the effects, which are performed later;
            the event is None for the state that a former server has left, and what holds there.
        journal: where the state outlives this server; None for nowhere.
        state: with which a former server of the job has ended; None for a new job.
        secret: of the job, from which the keys of generations follow; None for a random one.
        term: which start of the job's server this is, from 1; agents that know a later one refuse its answers.
        shown: the numbers of the agents' last messages that were shown in former terms, by the agents' identities; 0
            for an agent that has started a worker.
        keep_shown: notes for the next server that a message of an agent was shown, and then calls.
        note_taken: is told which message of an agent is shown next.

    streams: to the agents that outlive their launcher.
    """

    def __init__(
        self,
        policy: Policy,
        carry_out: Callable[[Effect], None],
        credential: Credential,
        tasks: TaskDispatcher | None = None,
        note_step: Callable[[Event | None, State, Effects], None] | None = None,
        *,
        journal: StateWriter | None = None,
        state: State | None = None,
        secret: bytes | None = None,
        term: int = 1,
        shown: Mapping[str, int] | None = None,
        keep_shown: KeepShown | None = None,
        note_taken: NoteTaken | None = None,
    ) -> None:
        self.tasks = tasks
        self.streams = AgentStreams(shown, keep_shown, note_taken)
        self.metadata = ((TERM, str(term)),)  # of each answer
        self.state: State = membership.begin(policy) if state is None else _continue(state, shown or {})
        self._is_resuming = state is not None
        self._held: Publish | None = None  # of the generation that a former server has published
        self._commits = None if journal is None else Commits(journal, self._perform_steps, self.fail)
        self._carry_out = carry_out
        self._note_step = note_step
        self._credential = credential
        self._topics = Topics(secret)
        self._last_reports: dict[str, int] = {}
        self._tenures = dict(self.state.tenures)  # by host, how many of its agents have been dismissed
        self._left = {  # those of them whose host was not lost: they may end in peace
            agent_identity(host, tenure).encode() for host, left in self.state.left.items() for tenure in left
        }
        self._effects: deque[Effect] = deque()
        self._is_performing = False
        self._listeners: list[grpc.aio.Server] = []
        self._clock: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._owner_was_stopped = False

    async def open(self, address: str, port: int = 0) -> int:
        """Listen on one more address, and return the port: this one, or a free one. The first call starts the clock.

        Raises:
            ListenError: this machine does not have the address, the port is taken, or gRPC does not start.
        """
        await self._resume()
        credential = self._credential
        credentials = grpc.ssl_server_credentials(
            [(credential.private_key, credential.certificate)], credential.authority, require_client_auth=True
        )

        host = address
        if ":" in address:
            host = f"[{address}]"
        listener = grpc.aio.server(options=(*_OPTIONS, ("grpc.max_allowed_incoming_connections", count_connections())))
        self._listeners.append(listener)
        pb_grpc.add_RendezvousServicer_to_server(_Servicer(self), listener)

        try:
            port = listener.add_secure_port(f"{host}:{port}", credentials)
            await serving.start(listener)
        except (RuntimeError, TimeoutError) as error:
            raise ListenError(address, serving.find_reason(error)) from None

        if self._clock is None:
            self.submit(Ticked(time.monotonic()))
            self._clock = asyncio.create_task(self._tick(), name="tick")
            self._clock.add_done_callback(self._fail_with_clock)
        return port

    async def close(self) -> None:
        """Stop the clock and every call, then raise the error that `fail` has recorded."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.wait({self._clock})
        if self._commits is not None:
            await self._commits.close()
        await serving.stop(self._listeners)
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.close()
        finally:
            if self._owner_was_stopped and self._owner is not None:
                self._owner.uncancel()

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
        if report.signal and report.signal not in SIGNALS:
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
        if report.noticed:
            self.submit(Noticed(report.host))
        self._last_reports[report.host] = report.number

    async def _resume(self) -> None:
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

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.submit(Ticked(time.monotonic()))

    def _fail_with_clock(self, clock: asyncio.Task[None]) -> None:
        if not clock.cancelled() and (error := clock.exception()) is not None:
            self.fail(error)


class _Servicer(pb_grpc.RendezvousServicer):
    """The calls of agents, each checked against the host that its certificate names.

    Args:
        server: answers the calls.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    async def Join(self, request: pb.JoinRequest, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        for host in {joined.worker.host for joined in request.joined}:
            await self._authorize(context, host)
        async with self._answer(context):
            if not request.joined:
                raise WireError("JoinRequest without joined")
            for joined in [codec.decode(Joined, each) for each in request.joined]:
                self._server.submit(joined)
        return pb.Ack()

    async def OpenSequencer(self, request: pb.SequencerOpened, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        if await self._admit(context, request.host):
            async with self._answer(context):
                self._server.submit(codec.decode(SequencerOpened, request))
        return pb.Ack()

    async def Declare(self, request: pb.Declared, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        await self._authorize(context, request.worker.host)
        async with self._answer(context):
            self._server.submit(codec.decode(Declared, request))
        return pb.Ack()

    async def Fail(self, request: pb.FailRequest, context: serving.Context) -> pb.Ack:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a worker reports its failure to its agent")

    async def Report(self, request: pb.AgentReport, context: serving.Context) -> pb.Ack:
        self._tell_term(context)
        if await self._admit(context, request.host):
            async with self._answer(context):
                self._server.receive(request)
        return pb.Ack()

    async def Watch(self, request: pb.WatchRequest, context: serving.Context) -> AsyncIterator[pb.Notification]:
        self._tell_term(context)
        await context.send_initial_metadata(self._server.metadata)
        if not await self._admit(context, request.host):
            await asyncio.Event().wait()  # until the agent ends the call, or the server closes
        async with (
            serving.answer_errors(context, self._server.fail),
            contextlib.aclosing(self._server.topic(request.host).subscribe()) as notifications,
        ):
            async for notification in notifications:
                yield codec.encode_notification(notification)

    async def Obey(self, request: pb.ObeyRequest, context: serving.Context) -> AsyncIterator[pb.Order]:
        self._tell_term(context)
        await context.send_initial_metadata(self._server.metadata)
        stream = await self._find_stream(context, request.host)
        async with contextlib.aclosing(stream.orders()) as orders:
            async for order in orders:
                yield codec.make_order(order)

    async def Deliver(self, request: pb.Delivery, context: serving.Context) -> pb.Shown:
        self._tell_term(context)
        stream = await self._find_stream(context, request.host)
        async with serving.answer_errors(context, self._server.fail):
            shown = await stream.receive(request.first, request.messages, is_last=request.is_last)
        return pb.Shown(number=shown)

    async def FetchTask(self, request: pb.FetchTaskRequest, context: serving.Context) -> AsyncIterator[pb.TaskPart]:
        await self._authorize(context, request.worker.host)
        async with serving.answer_errors(context, self._server.fail):
            dispatcher = await self._find_tasks(context)
            task = await dispatcher.next(request.after)
            if task is not None:
                yield pb.TaskPart(number=task.number)
                for piece in task.pieces():
                    yield pb.TaskPart(data=piece)

    async def DeliverOutcome(self, request_iterator: AsyncIterator[pb.OutcomePart], context: serving.Context) -> pb.Ack:
        first = await anext(request_iterator, pb.OutcomePart())
        await self._authorize(context, first.head.worker.host)
        dispatcher = await self._find_tasks(context)
        async with serving.answer_errors(context, self._server.fail):
            await dispatcher.take(codec.decode(OutcomeHead, first.head), _read_data(request_iterator))
        return pb.Ack()

    async def _find_tasks(self, context: serving.Context) -> TaskDispatcher:
        if self._server.tasks is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this job runs a program, and has no tasks")
        return self._server.tasks

    def _tell_term(self, context: serving.Context) -> None:
        """Let the end of the answer carry the term; at its beginning it would be sent on its own."""
        context.set_trailing_metadata(self._server.metadata)

    async def _find_stream(self, context: serving.Context, host: str) -> AgentStream:
        await self._admit(context, host)
        return self._server.stream(host, _read_identities(context))

    @contextlib.asynccontextmanager
    async def _answer(self, context: serving.Context) -> AsyncIterator[None]:
        """Answer a call, with an error too, when the state that the answer follows from is durable."""
        async with serving.answer_errors(context, self._server.fail):
            try:
                yield
            finally:
                await self._server.settle()

    async def _admit(self, context: serving.Context, host: str) -> bool:
        """The caller is the agent of the host; a call of one that the job has left has no effect. Refuses others."""
        identities = _read_identities(context)
        if self._server.expects(host, identities):
            return True
        await self._server.settle()
        if self._server.has_left(identities):
            return False
        await self._authorize(context, host)
        return True

    async def _authorize(self, context: serving.Context, host: str) -> None:
        identities = _read_identities(context)
        if self._server.expects(host, identities):
            return
        await self._server.settle()
        former_agents = range(1, self._server.number_agent(host))
        if any(agent_identity(host, former).encode() in identities for former in former_agents):
            reason = f"host {host!r} was lost, and another agent has replaced this one"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"your certificate is not that of host {host!r}")


def _continue(state: State, shown: Mapping[str, int]) -> State:
    """The state of a former server, as this one continues from it."""
    return restore(state, [host for host in state.hosts if agent_identity(host, _find_number(state, host)) in shown])


def _find_number(state: State, host: str) -> int:
    return state.tenures.get(host, 0) + 1


def _read_identities(context: serving.Context) -> Collection[bytes]:
    return tuple(context.auth_context().get("x509_subject_alternative_name", ()))


async def _read_data(parts: AsyncIterator[pb.OutcomePart]) -> AsyncIterator[bytes]:
    """The bytes of the parts after the first."""
    async for part in parts:
        if part.HasField("head"):
            raise WireError("a second head in the stream of one outcome")
        yield part.data
