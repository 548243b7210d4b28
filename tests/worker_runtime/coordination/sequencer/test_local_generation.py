"""A generation in the test's own process, whose state and timers a test can set."""

import socket
from contextlib import closing

from tests.waiting import LIMIT_SECONDS
from tests.worker_runtime.coordination.sequencer.client import BARRIER, JOIN, KEY, PLAIN
from tests.worker_runtime.coordination.sequencer.ends import Ends
from worker_runtime.coordination import wire
from worker_runtime.coordination.ordering.requests import Signature
from worker_runtime.coordination.sequencer.connection import Poller
from worker_runtime.coordination.sequencer.generation import Generation
from worker_runtime.coordination.sequencer.orders import ActivationOrder
from worker_runtime.coordination.sequencer.stalls import StallLimits, StallSettings
from worker_runtime.coordination.wire import Frame, Released


class Here:
    """A generation in this process, and the ranks' ends of its connections."""

    def __init__(self, size: int, limits: StallLimits) -> None:
        self.poller = Poller()
        self.generation = Generation(ActivationOrder(1, size, KEY), StallSettings(limits), print)
        ends = [Ends(self.poller) for _ in range(size)]
        self.peers = [each.peer for each in ends]
        for rank, each in enumerate(ends):
            self.generation.admit(each.connection, rank, b"")

    def ask(self, rank: int, signature: Signature, *names: bytes) -> None:
        """Ask these requests, and let them be answered."""
        requests = b"".join(wire.encode_request(0, 0, name) for name in names)
        signed = wire.encode_frame(Frame.SIGNATURE, wire.encode_signature(0, signature))
        self.peers[rank].sendall(signed + wire.encode_frame(Frame.REQUESTS, requests))
        pending = self.generation._members[rank].asked
        while self.generation._members[rank].asked == pending:
            self.poller.wait(LIMIT_SECONDS)
        self.generation.settle()

    def close(self) -> None:
        """End all there is."""
        self.generation.close()
        self.poller.close()
        for peer in self.peers:
            peer.close()


def test_numbers_of_requests_begin_anew_after_the_last() -> None:
    with closing(Here(1, StallLimits())) as here:
        here.generation._members[0].asked = 2**32 - 1
        here.ask(0, BARRIER, b"a", b"b")
        assert [released.number for released in read_releases(here.peers[0])] == [2**32 - 1, 0]


def test_a_join_is_no_stall_while_others_work() -> None:
    with closing(Here(2, StallLimits(1e6, None))) as here:
        here.ask(0, JOIN, b"join")
        due = here.generation.find_due()
        here.ask(1, PLAIN, b"a")
        here.generation.check_stalls(due)  # since then, something was released
        later = here.generation.find_due()
        assert due < later < due + 1e5


def test_a_generation_that_has_failed_is_not_checked_for_stalls() -> None:
    """Rank 0 waits for rank 1, whose host is given up, and then closes its connection; rank 1 keeps its own."""
    with closing(Here(2, StallLimits(1e6, None))) as here:
        here.ask(0, BARRIER, b"a")
        due = here.generation.find_due()
        here.peers[0].sendall(wire.encode_frame(Frame.HALT, b"host b was lost"))
        here.peers[0].close()
        while 0 in here.generation._members:
            here.poller.wait(LIMIT_SECONDS)
        here.generation.check_stalls(due)
        assert here.generation.find_due() is None


def read_releases(peer: socket.socket) -> list[Released]:
    """The releases of the next frame."""
    length, _ = wire.HEADER.unpack(peer.recv(wire.HEADER.size, socket.MSG_WAITALL))
    return list(wire.decode_releases(memoryview(peer.recv(length, socket.MSG_WAITALL)), lambda _: 1))
