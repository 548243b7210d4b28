"""Connecting to the sequencer, gathering requests, and making frames of them."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch

from tests.ports import reserve_port
from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.conversation import SUM, Echo, Sequencer
from tests.worker_runtime.ranks import RankPool
from worker_runtime.collectives.allgather import Allgather
from worker_runtime.coordination import link as link_module
from worker_runtime.coordination import messages as messages_module
from worker_runtime.coordination import wire
from worker_runtime.coordination.link import Link
from worker_runtime.coordination.operation import Operation
from worker_runtime.coordination.ordering.requests import Kind, Request, Signature
from worker_runtime.coordination.wire import Frame
from worker_runtime.errors import SequencerError, UnsendableError
from worker_runtime.membership import runtime
from worker_runtime.rendezvous import Endpoint

KEY = bytes(range(32))
LIMIT = timedelta(seconds=LIMIT_SECONDS)
Ends = tuple[Link, Sequencer]


@contextmanager
def serving(serve: Callable[[socket.socket], object], count: int = 1) -> Iterator[Endpoint]:
    """A server of so many connections, one after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_SECONDS)

        def body() -> None:
            for _ in range(count):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(LIMIT_SECONDS)
                    serve(connection)

        thread = threading.Thread(target=body)
        thread.start()
        yield Endpoint(*listener.getsockname())
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive()


def prove(connection: socket.socket, key: bytes = KEY) -> wire.Greeting:
    """What the sequencer does first."""
    connection.sendall(b"c" * wire.NONCE_BYTES)
    greeting = wire.read_greeting(connection.recv(wire.GREETING_BYTES, socket.MSG_WAITALL))
    connection.sendall(greeting.answer(key, b"c" * wire.NONCE_BYTES))
    return greeting


def test_a_rank_that_is_turned_away_unheard_comes_again_and_both_prove_that_they_know_the_key() -> None:
    visits, greetings = iter(range(3)), list[wire.Greeting]()

    def serve(connection: socket.socket) -> None:
        if next(visits) == 2:
            greetings.append(prove(connection))

    with serving(serve, count=3) as endpoint:
        Link.connect(endpoint, KEY, 7, 3, LIMIT).close()
    (greeting,) = greetings
    assert (greeting.generation, greeting.rank) == (7, 3)
    assert greeting.is_proven(KEY, b"c" * wire.NONCE_BYTES)


@pytest.mark.parametrize(
    ("serve", "limit_seconds", "reason"),
    [
        (lambda connection: prove(connection, bytes(32)), LIMIT_SECONDS, "it does not know the key"),
        (lambda _: None, LIMIT_SECONDS, "it closed the connection"),
        (lambda connection: connection.recv(1), 0.3, ".*timed out"),
    ],
    ids=["stranger", "hangs up", "silent"],
)
def test_a_server_that_is_no_sequencer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[[socket.socket], object], limit_seconds: float, reason: str
) -> None:
    monkeypatch.setattr(link_module, "PATIENCE_SECONDS", 0.0)
    with (
        serving(serve) as endpoint,
        pytest.raises(SequencerError, match=rf"cannot reach the sequencer at {endpoint}: {reason}"),
    ):
        Link.connect(endpoint, KEY, 7, 3, timedelta(seconds=limit_seconds))


def test_a_port_without_a_listener_is_given_up_immediately() -> None:
    with (
        reserve_port() as port,
        pytest.raises(SequencerError, match="refused; the sequencer, a process beside rank 0, has ended"),
    ):
        Link.connect(Endpoint("127.0.0.1", port), KEY, 7, 3, timedelta(hours=1))


def test_an_address_that_cannot_be_reached_is_given_up_in_time() -> None:
    with pytest.raises(SequencerError):
        Link.connect(Endpoint("255.255.255.255", 1), KEY, 7, 3, timedelta(seconds=0.1))


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    link, sequencer = Link(ours, 3), Sequencer(theirs)
    yield link, sequencer
    link.close()
    sequencer.close()


def test_more_than_a_frame_holds_goes_in_several(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 100)
    link, sequencer = ends
    for index in range(10):
        link.queue.ask(Echo(f"name {index}"))
    link.flush()
    assert sequencer.read_names(10) == [f"name {index}" for index in range(10)]
    assert sequencer.frames.count(Frame.REQUESTS) > 2


def test_numbers_of_requests_begin_anew(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "NUMBERS", 3)
    assert [ends[0].queue.ask(Echo("x")) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_a_link_is_full_when_a_part_of_a_burst_is_gathered(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "BURST", 3)
    link, _ = ends
    fullness = []
    for _ in range(3):
        link.queue.ask(Echo("x"))
        fullness.append(link.queue.is_full)
    link.flush()
    assert [*fullness, link.queue.is_full] == [False, False, True, False]


def read_requests(
    sequencer: Sequencer, count: int, known: dict[int, Signature] | None = None
) -> dict[str, tuple[Signature, tuple[int, ...], bytes]]:
    """The next requests, by name: signature, sizes and payload; `known` are signatures that came before."""
    known = {} if known is None else known
    read: dict[str, tuple[Signature, tuple[int, ...], bytes]] = {}
    while len(read) < count:
        kind, body = sequencer.read()
        if kind == Frame.SIGNATURE:
            known.update([wire.decode_signature(memoryview(body))])
        else:
            for head, sizes, payload in wire.decode_requests(body, 0, len(body)):
                signature_number, _, name, _ = wire.decode_head(head)
                read[name] = known[signature_number], sizes, payload
    return read


def test_a_signature_is_sent_once_before_its_first_request(ends: Ends) -> None:
    link, sequencer = ends
    other = Signature(Kind.BARRIER)
    asked = {"a": SUM, "b": other, "c": SUM, "d": replace(other), "e": replace(SUM)}
    for name, signature in asked.items():
        operation = Echo(name)
        operation.request = Request(0, name, signature)
        link.queue.ask(operation)
    link.flush()
    read = read_requests(sequencer, 5)
    assert {name: signature for name, (signature, *_) in read.items()} == asked
    assert sequencer.frames == [Frame.SIGNATURE] * 2 + [Frame.REQUESTS]


def test_of_signatures_without_end_the_numbers_are_used_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_SIGNATURES", 3)
    link, sequencer = ends
    known: dict[int, Signature] = {}
    for note in "abcadabcdd":  # "a" is in use when "b" makes room for "d"
        operation = Echo(note)
        operation.request = Request(0, note, replace(SUM, note=note))
        link.queue.ask(operation)
        link.flush()
        assert read_requests(sequencer, 1, known) == {note: (operation.request.signature, (), b"12345678")}
        assert max(known) < 3
    assert sequencer.frames.count(Frame.SIGNATURE) == 7


class Lost(Echo):
    """An operation whose values cannot be read."""

    error: BaseException = MemoryError("no memory")

    @property
    def payload(self) -> bytes:
        """Raises."""
        raise self.error


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        ({"signature": replace(SUM, note=object())}, ()),
        ({"signature": replace(SUM, shapes=([1],))}, ()),  # a signature with a list has no hash
        ({"name": "a lone surrogate: \udc80"}, ()),
        ({"name": "x" * 70_000}, ()),
        ({}, (2**63,)),
        ({}, (1.5,)),
        ({}, (0,) * 70_000),
    ],
    ids=["encoding", "hash", "surrogate", "long name", "large size", "float size", "many sizes"],
)
def test_an_operation_that_cannot_become_a_request_is_not_counted(
    ends: Ends, change: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    link, sequencer = ends
    for _ in range(2):  # the first attempt leaves nothing behind for the second
        wrong = Echo("wrong")
        wrong.request, wrong.sizes = wrong.request._replace(**change), sizes
        with pytest.raises(UnsendableError, match=r" cannot be sent: .+"):
            link.queue.ask(wrong)
    assert [link.queue.ask(Echo("a")), link.queue.ask(Echo("b"))] == [0, 1]
    link.flush()
    assert read_requests(sequencer, 2) == dict.fromkeys("ab", (SUM, (), b"12345678"))


@pytest.mark.parametrize("error", [MemoryError("no memory"), RuntimeError("no memory"), TypeError("no memory")])
def test_an_operation_whose_values_cannot_be_read_does_not_hold_up_its_neighbours(ends: Ends, error: Exception) -> None:
    link, sequencer = ends
    lost = Lost("lost")
    lost.error = error
    for operation in (Echo("a"), lost, Echo("b")):
        link.queue.ask(operation)
    link.flush()
    requests = read_requests(sequencer, 3)
    assert list(requests) == ["a", "lost", "b"]
    assert requests["a"] == requests["b"] == (SUM, (), b"12345678")
    signature, sizes, payload = requests["lost"]
    assert (signature.kind, signature.note) == (Kind.FAIL, f"{type(error).__name__}: no memory")
    assert (sizes, payload) == ((), b"")


def test_data_that_an_interrupt_leaves_is_sent_later(ends: Ends) -> None:
    link, sequencer = ends
    interrupted = Lost("interrupted")
    interrupted.error = KeyboardInterrupt()
    for operation in (Echo("a"), interrupted):
        link.queue.ask(operation)
    with pytest.raises(KeyboardInterrupt):
        link.flush()
    interrupted.error = MemoryError()
    link.queue.ask(Echo("b"))
    link.flush()
    assert list(read_requests(sequencer, 3)) == ["a", "interrupted", "b"]


def test_an_operation_that_cannot_be_requested_leaves_its_name_and_the_others_alone(ranks: RankPool) -> None:
    def body() -> object:
        engine = runtime.RUNTIME.engine
        among = engine.find_members(0, "test")

        def make() -> Operation[Any]:
            return Allgather([torch.ones(1)], among, "allgather.x")

        wrong = make()
        wrong.sizes = (2**70,)
        with pytest.raises(UnsendableError, match="allgather 'x' cannot be sent"):
            engine.submit(wrong)
        return engine.run(make())[0].tensor.tolist()

    assert ranks.run(body) == [[1.0, 1.0]] * 2
