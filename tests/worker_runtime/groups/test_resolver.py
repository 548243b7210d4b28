"""The name server does not answer: how often it is asked, and for how long, is decided for one thread, for a while."""

import ctypes
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.worker_runtime.conversation import Errand
from worker_runtime.groups import resolver
from worker_runtime.groups.resolver import brief_lookups

NOWHERE = ("::ffff:127.0.0.9", 80, 0, 0)  # no file names it in this form


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A name server that takes questions and does not answer; this thread's only one."""
    state = resolver._find_state()
    if state is None:
        pytest.skip("this is not glibc")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0)
        patience = state.retrans, state.retry
        state.retrans, state.retry = 5, 2  # as they are where nobody has set them
        place = ctypes.addressof(state)
        kept = ctypes.string_at(place + 16, 20)  # the number of servers, and the first
        address = struct.pack("@HH4s8x", socket.AF_INET, socket.htons(server.getsockname()[1]), b"\x7f\0\0\1")
        ctypes.memmove(place + 16, struct.pack("@i", 1) + address, 20)
        yield server
        ctypes.memmove(place + 16, kept, 20)
        state.retrans, state.retry = patience


def count_questions(server: socket.socket) -> int:
    count = 0
    while True:
        try:
            server.recv(1000)
        except BlockingIOError:
            return count
        count += 1


def test_a_name_that_nobody_tells_is_asked_for_three_times(silent_server: socket.socket) -> None:
    with brief_lookups(), pytest.raises(socket.gaierror):
        socket.getnameinfo(NOWHERE, socket.NI_NUMERICSERV)
    assert count_questions(silent_server) == 3


def test_the_settings_come_back_and_are_this_thread_s_own() -> None:
    def read() -> tuple[int, int]:
        state = resolver._find_state()
        return state.retrans, state.retry

    if resolver._find_state() is None:
        pytest.skip("this is not glibc")
    before = read()
    with brief_lookups():
        assert read() == (1, max(before[1], 3))
        assert Errand(read).finish() == before
    assert read() == before


def test_without_glibc_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver.ctypes, "CDLL", lambda _: object())
    with brief_lookups():
        assert resolver._find_state() is None
