"""A rendezvous in one process for tests: a real server, real relays on Unix sockets, and a network that can break."""

import asyncio
import functools
import gc
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import grpc
import psutil

from rendezvous.bootstrap import Bootstrap
from rendezvous.client import AgentClient, WorkerClient, name_socket
from rendezvous.core.messages import Announce, Effect, HostsChanged
from rendezvous.core.model import Endpoint, Host, Policy, Slot, Worker
from rendezvous.server.authority import Authority
from rendezvous.server.relay import NoteFailure, Relay
from rendezvous.server.server import Server
from rendezvous.wire.notifications import Notification, Published, SequencerFailed
from rendezvous.wire.orders import Credential
from tests.waiting import LIMIT_SECONDS, wait_until

T = TypeVar("T")
P = ParamSpec("P")

LOOPBACK = "127.0.0.1"
SERVICE = "hvdrun.rendezvous.v1.Rendezvous"
_CHUNK_BYTES = 65_536

A0, A1, B0, B1 = (Worker(Slot(host, index), 1) for host in "ab" for index in range(2))


def run(story: Coroutine[Any, Any, T]) -> T:
    """Run a story to its end; what it leaves behind, or asyncio complains about, fails the test."""
    complaints: list[str] = []
    listener = _Listener(complaints)
    logger = logging.getLogger("asyncio")
    logger.addHandler(listener)
    threads, sockets = _find_threads(), find_sockets()
    try:
        with asyncio.Runner(debug=True) as runner:
            runner.get_loop().slow_callback_duration = LIMIT_SECONDS  # debug mode complains of slow ones as well
            result = runner.run(_report_leftovers(story, complaints))
            gc.collect()  # an object that was left alone says so when it goes
    finally:
        logger.removeHandler(listener)
    wait_until(lambda: not (_find_threads() - threads or find_sockets() - sockets))
    assert complaints == []
    return result


def in_clean_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test to its end; what it leaves behind fails it."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapper


def _find_threads() -> set[threading.Thread]:
    """The one in which gRPC polls for all loops stays as long as it likes: it is a daemon."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


def find_sockets() -> set[object]:
    """The sockets that others could reach; socket pairs have no path."""
    process = psutil.Process()
    unix = (socket for socket in process.net_connections("unix") if socket.laddr)
    return {(found.fd, found.laddr, found.raddr) for found in (*process.net_connections("inet"), *unix)}


async def _report_leftovers(story: Coroutine[Any, Any, T], complaints: list[str]) -> T:
    result = await story
    rest = asyncio.all_tasks() - {task for task in (asyncio.current_task(),) if task is not None}
    if rest:  # a callback of a task that has just ended may still be under way
        await asyncio.wait(rest, timeout=LIMIT_SECONDS)
    complaints += [f"left behind: {task!r}" for task in rest if not task.done()]
    return result


class _Listener(logging.Handler):
    def __init__(self, complaints: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, BlockingIOError):  # of gRPC's poller, where another thread's loop was faster
            self._complaints.append(record.getMessage())


async def in_thread(call: Callable[[], T]) -> T:
    """What a worker's blocking call returns."""
    async with asyncio.timeout(LIMIT_SECONDS):
        return await asyncio.to_thread(call)


@dataclass
class Sequencing:
    """Has a sequencer for every generation immediately, or none.

    failure: why there is none.
    """

    endpoint: Endpoint = field(default_factory=lambda: Endpoint(LOOPBACK, 4712))
    failure: str | None = None
    is_slow: bool = False
    interpreters: list[str] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    posting: list[asyncio.Future[None]] = field(default_factory=list)

    def prepare(self, interpreter: str) -> None:
        """See `rendezvous.server.relay.SequencerProvider`."""
        self.interpreters.append(interpreter)

    def activate(self, published: Published, post: Callable[[Notification], Awaitable[None]]) -> None:
        """See `rendezvous.server.relay.SequencerProvider`."""
        self.published.append(published)
        if self.is_slow or all(assignment.rank for _, assignment in published.members):
            return  # the sequencer does not listen yet, or runs on another host
        opened = Announce(published.generation, self.endpoint)
        failed = None if self.failure is None else SequencerFailed(published.generation, self.failure)
        self.posting.append(asyncio.ensure_future(post(failed or opened)))

    async def stop(self) -> None:
        """Post nothing more, as an agent that ends."""
        posting = [each for each in self.posting if not each.done()]
        for each in posting:
            each.cancel()
        if posting:
            await asyncio.wait(posting)


@dataclass
class Stage:
    """A job's server and what it has ordered."""

    server: Server
    authority: Authority
    port: int
    effects: list[Effect] = field(default_factory=list)
    sequencing: Sequencing = field(default_factory=Sequencing)  # of all hosts

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"{LOOPBACK}:{self.port}"

    @asynccontextmanager
    async def agent(
        self,
        host: str,
        *,
        address: str = "",
        credential: Credential | None = None,
        is_patient: bool = False,
        **options: float,
    ) -> AsyncIterator[AgentClient]:
        """The client of a host's agent, or of one that shows another credential."""
        credential = credential or self.authority.issue_agent(host, self.server.number_agent(host))
        client = AgentClient(address or self.address, host, credential, is_patient=is_patient, **options)
        try:
            yield client
        finally:
            await client.close()

    @asynccontextmanager
    async def relay(
        self,
        host: str,
        socket: Path,
        note_failure: NoteFailure = lambda *_, **__: None,
        *,
        address: str = "",
        note_outcome: Callable[[Worker, int], None] = lambda *_: None,
        bugs: Sequence[type[Exception]] = (),
    ) -> AsyncIterator[None]:
        """A host's relay at work; `bugs`: the unexpected errors that it reports."""
        errors: list[BaseException] = []
        async with self.agent(host, address=address) as client:
            relay = Relay(host, client, self.sequencing, note_failure, note_outcome, fail=errors.append)
            await relay.open(socket)
            following = asyncio.create_task(relay.follow_server())
            try:
                yield
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
                await self.sequencing.stop()
                await relay.close()
        assert [type(error) for error in errors] == [*bugs]


@asynccontextmanager
async def open_stage(
    hosts: Sequence[Host] = (Host("a", 2), Host("b", 2)), policy: Policy | None = None, **limits: float
) -> AsyncIterator[Stage]:
    """A job on these hosts; a static one, all their slots in use, unless the policy is another."""
    effects: list[Effect] = []
    policy = policy or Policy.static(sum(host.slots for host in hosts), **limits)
    authority = Authority("job")
    async with Server(policy, effects.append, authority.issue_server()) as server:
        port = await server.open(LOOPBACK)
        server.submit(HostsChanged(tuple(hosts)))
        yield Stage(server, authority, port, effects)


def make_bootstrap(socket: Path, worker: Worker, *, start_timeout_seconds: float = LIMIT_SECONDS) -> Bootstrap:
    """What the agent at this socket gives to a worker."""
    return Bootstrap("job", socket, worker, LOOPBACK, start_timeout_seconds, 5.0)


@asynccontextmanager
async def open_worker(socket: Path, worker: Worker) -> AsyncIterator[WorkerClient]:
    """A worker's client; its calls block, so they belong into a thread."""
    with closing(WorkerClient(make_bootstrap(socket, worker))) as client:
        yield client


async def serve_method(path: Path, name: str, handler: "grpc.RpcMethodHandler[Any, Any]") -> grpc.aio.Server:
    """A server at a socket that knows one method of the rendezvous."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {name: handler}),))
    server.add_insecure_port(name_socket(path))
    await server.start()
    return server


class Network:
    """The way to a server, which can be cut: all its connections break, and new ones are refused until it is mended.

    A way can also forget its connections: nothing passes on them any more, and no end is notified.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._is_cut = asyncio.Event()
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        """Where the way begins."""
        return f"{LOOPBACK}:{self.port}"

    async def mend(self, port: int | None = None) -> None:
        """Take connections, at the same place as before; they lead to the server at this port from now on."""
        self._target = port or self._target
        self._is_cut = asyncio.Event()
        self._listener = await asyncio.start_server(self._join, LOOPBACK, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Break every connection."""
        if self._listener is not None:
            self._listener.close()
        self._is_cut.set()
        while self._connections:
            await asyncio.wait(self._connections)

    def forget(self) -> None:
        """Let the connections that are there fall silent; new ones are made as ever."""
        for pump in self._pumps:
            pump.cancel()

    def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._connect(reader, writer, self._is_cut))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: writer.transport.abort())  # also where the server does not listen

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_cut: asyncio.Event) -> None:
        there, back = await asyncio.open_connection(LOOPBACK, self._target)
        pumps = {asyncio.create_task(part) for part in (_pump(reader, back), _pump(there, writer))}
        self._pumps |= pumps
        parts = (*pumps, cut := asyncio.create_task(is_cut.wait()))
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if any(pump.cancelled() for pump in pumps):  # forgotten
                await cut
        finally:
            self._pumps -= pumps
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            back.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def open_network(port: int) -> AsyncIterator[Network]:
    """A way to the server at this port."""
    network = Network(port)
    await network.mend()
    try:
        yield network
    finally:
        await network.cut()
