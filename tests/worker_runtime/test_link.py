"""Connecting to the sequencer, whose part a test plays; what follows is `test_driver.py`'s."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from tests.worker_runtime.conversation import LIMIT_SECONDS
from worker_runtime import link as link_module
from worker_runtime import wire
from worker_runtime.errors import SequencerError
from worker_runtime.link import Link
from worker_runtime.membership import Endpoint

KEY = bytes(range(32))
LIMIT = timedelta(seconds=LIMIT_SECONDS)


@contextmanager
def serving(serve: Callable[[socket.socket], None], count: int = 1) -> Iterator[Endpoint]:
    """Somebody who serves so many connections, one after the other."""
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


def test_both_prove_that_they_know_the_key() -> None:
    greetings: list[wire.Greeting] = []
    with serving(lambda connection: greetings.append(prove(connection))) as endpoint:
        Link.connect(endpoint, KEY, 7, 3, LIMIT).close()
    (greeting,) = greetings
    assert (greeting.generation, greeting.rank) == (7, 3)
    assert greeting.is_proven(KEY, b"c" * wire.NONCE_BYTES)


def test_one_who_does_not_know_the_key_is_no_sequencer() -> None:
    with (
        serving(lambda connection: (prove(connection, bytes(32)), None)[1]) as endpoint,
        pytest.raises(SequencerError, match=rf"sequencer at {endpoint} was not reached: it does not know the key"),
    ):
        Link.connect(endpoint, KEY, 7, 3, LIMIT)


def test_a_rank_that_is_turned_away_unheard_comes_again() -> None:
    visits = iter(range(3))

    def serve(connection: socket.socket) -> None:
        if next(visits) == 2:
            prove(connection)

    with serving(serve, count=3) as endpoint:
        Link.connect(endpoint, KEY, 7, 3, LIMIT).close()


def test_one_who_always_hangs_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_PATIENCE_SECONDS", 0.0)
    with (
        serving(lambda connection: None) as endpoint,  # noqa: ARG005 - hangs up
        pytest.raises(SequencerError, match="it ended the connection"),
    ):
        Link.connect(endpoint, KEY, 7, 3, LIMIT)


def test_one_who_says_nothing_is_given_up_in_time() -> None:
    began = time.monotonic()
    with (
        serving(lambda connection: (connection.recv(1), None)[1]) as endpoint,
        pytest.raises(SequencerError, match="timed out"),
    ):
        Link.connect(endpoint, KEY, 7, 3, timedelta(seconds=0.3))
    assert time.monotonic() - began < LIMIT_SECONDS / 2


def test_a_port_where_nobody_listens_any_more_is_given_up_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(*listener.getsockname())
    with pytest.raises(SequencerError, match="refused"):
        Link.connect(endpoint, KEY, 7, 3, timedelta(hours=1))


def test_an_address_that_cannot_be_reached_is_given_up_in_time() -> None:
    with pytest.raises(SequencerError):
        Link.connect(Endpoint("255.255.255.255", 1), KEY, 7, 3, timedelta(seconds=0.1))
