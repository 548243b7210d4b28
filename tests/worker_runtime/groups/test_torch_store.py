"""torch's own store: what it looks up and warns of, on hosts whose addresses no name server knows."""

import ctypes
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.house.sources import ROOT
from tests.worker_runtime.conversation import Errand
from worker_runtime.groups import torch_store
from worker_runtime.groups.torch_store import brief_lookups

NAMELESS = ("unshare", "--net", "--map-root-user", "sh", "-c")
NETWORK = 'ip link set lo up && ip addr add 192.0.2.1/32 dev lo && exec "$0" "$@"'
OPENS = """
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from torch.distributed import HashStore
from worker_runtime.groups.torch_store import _find_level, open_torch_store

meeting, limit = HashStore(), timedelta(seconds=60)
with ThreadPoolExecutor() as threads:
    stores = [threads.submit(open_torch_store, meeting, "192.0.2.1", "a", rank, limit) for rank in range(2)]
    stores[0].result().set("key", "value")
    print(stores[1].result().get("key").decode(), _find_level().value)
"""
NOWHERE = ("::ffff:127.0.0.9", 80, 0, 0)  # no file names it in this form


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """A name server that takes questions and does not answer; this thread's only one."""
    state = torch_store._find_resolver()
    if state is None:
        pytest.skip("this is not glibc")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0)
        patience = state.retrans, state.retry
        state.retrans, state.retry = 5, 2  # as they are by default
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


def test_a_name_that_no_server_resolves_is_requested_three_times(silent_server: socket.socket) -> None:
    with brief_lookups(), pytest.raises(socket.gaierror):
        socket.getnameinfo(NOWHERE, socket.NI_NUMERICSERV)
    assert count_questions(silent_server) == 3


def test_brief_lookups_change_the_resolver_of_their_thread_alone_and_restore_it() -> None:
    def read() -> tuple[int, int]:
        state = torch_store._find_resolver()
        return state.retrans, state.retry

    if torch_store._find_resolver() is None:
        pytest.skip("this is not glibc")
    before = read()
    with brief_lookups():
        assert read() == (1, max(before[1], 3))
        assert Errand(read).finish() == before
    assert read() == before


def test_without_glibc_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_store.ctypes, "CDLL", lambda _: object())
    with brief_lookups():
        assert torch_store._find_resolver() is None


def test_both_members_have_one_store_and_no_warning_of_names() -> None:
    if subprocess.run([*NAMELESS, NETWORK, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace can be made here: run as root, with iproute2 and util-linux")
    command = [*NAMELESS, NETWORK, sys.executable, "-c", OPENS]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True)
    assert (run.stdout, run.stderr) == ("value 1\n", "")
