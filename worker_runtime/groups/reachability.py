"""The reachability check: which members cannot reach which, after the members of a generation could not connect.

Each member listens on its address while the group is formed, and publishes the port in the store; it accepts no
connection. After the time limit each member probes the others' listeners in a thread, and publishes which did not
answer: gloo does not report which member it waits for, and may wait five times the limit. A member that fails reads the
findings of all, so that all report the same.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Self

from torch._C._distributed_c10d import Store  # torch.distributed has no types for it

PROBE_SECONDS = 2.0  # enough for a connection between hosts that reach each other, also with lost packets
_WAIT = timedelta(seconds=PROBE_SECONDS + 3.0)  # for the findings of members that notice the failure later
_MOST_PAIRS = 4  # the largest number of pairs in the message
_BACKLOG = 4096  # for connections, which are never accepted


class UnreachedError(RuntimeError):
    """Some members of a generation cannot reach others. The message names them.

    Args:
        pairs: pairs of ranks, of which the first cannot reach the second.
        addresses: the addresses of the ranks.
    """

    def __init__(self, pairs: tuple[tuple[int, int], ...], addresses: dict[int, str]) -> None:
        named = [f"rank {one} cannot reach rank {other} on {addresses[other]}" for one, other in pairs[:_MOST_PAIRS]]
        rest = len(pairs) - len(named)
        super().__init__(", ".join([*named, f"and {rest} more"] if rest else named))


class Reachability:
    """One member's listener and probes; a context manager, which listens until it exits.

    Args:
        store: the generation's store.
        rank, size: this member's rank, and the size of the generation.
        address: this member's address for the others.
        limit_seconds: the time before it probes the others' listeners, unless it is closed before.

    Raises:
        OSError: it cannot listen on this address.
    """

    def __init__(self, store: Store, rank: int, size: int, address: str, limit_seconds: float) -> None:
        self._store = store
        self._rank = rank
        self._address = address
        self._others = [other for other in range(size) if other != rank]

        family, kind, protocol, _, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.socket(family, kind, protocol)
        try:
            self._listener.bind(where)
            self._listener.listen(_BACKLOG)
            store.set(_name_listener(rank), f"{self._listener.getsockname()[1]} {address}")
        except BaseException:
            self._listener.close()
            raise

        self._limit_seconds = limit_seconds
        self._is_closed = threading.Event()
        self._lock = threading.Lock()  # so that one thread probes and reports
        self._probing = threading.Thread(target=self._probe_later, name="hvd-probe", daemon=True)

    def __enter__(self) -> Self:
        self._probing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del kind, error, traceback
        self._is_closed.set()
        self._probing.join()
        self._listener.close()

    def raise_unreached(self) -> None:
        """Raise an error if members cannot reach each other, as far as they have reported.

        Raises:
            UnreachedError: some members cannot reach others.
        """
        pairs: list[tuple[int, int]] = []
        addresses: dict[int, str] = {}
        with contextlib.suppress(RuntimeError):  # the store is lost with rank 0
            self._report()
            listeners = self._list_listeners()
            pairs = sorted(self._read_findings([self._rank, *listeners]))
            addresses = {rank: address for rank, (address, _) in listeners.items()}
        if pairs:
            raise UnreachedError(tuple(pairs), {**addresses, self._rank: self._address})

    def _probe_later(self) -> None:
        if not self._is_closed.wait(self._limit_seconds):
            with contextlib.suppress(RuntimeError):  # the store is lost
                self._report()

    def _report(self) -> None:
        """Probe the others' listeners, and publish which do not answer; once."""
        with self._lock:
            if self._has_reported(self._rank):
                return
            listeners = self._list_listeners()
            # A member that has reported may have left: its closed listener means nothing.
            unreached = probe({rank: listeners[rank] for rank in listeners if not self._has_reported(rank)})
            self._store.set(_name_finding(self._rank), ",".join(map(str, unreached)))

    def _list_listeners(self) -> dict[int, tuple[str, int]]:
        """The address and port of each other member that has published them."""
        listeners = {}
        for rank in self._others:
            if self._store.check([_name_listener(rank)]):
                port, _, address = self._store.get(_name_listener(rank)).decode().partition(" ")
                listeners[rank] = address, int(port)
        return listeners

    def _has_reported(self, rank: int) -> bool:
        return bool(self._store.check([_name_finding(rank)]))

    def _read_findings(self, ranks: Iterable[int]) -> list[tuple[int, int]]:
        """The pairs that these members report within a time limit."""
        with contextlib.suppress(RuntimeError):  # some do not report
            self._store.wait([_name_finding(rank) for rank in ranks], _WAIT)
        pairs = []
        for rank in ranks:
            if self._has_reported(rank):
                found = self._store.get(_name_finding(rank)).decode()
                pairs += [(rank, int(other)) for other in found.split(",") if other]
        return pairs


def probe(listeners: dict[int, tuple[str, int]]) -> list[int]:
    """The ranks whose listeners do not answer in time, given addresses and ports by rank."""
    deadline = time.monotonic() + PROBE_SECONDS
    unreached = set(listeners)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for rank, (address, port) in listeners.items():
            with contextlib.suppress(OSError):  # a wrong address, or one without a route
                family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                probing = stack.enter_context(socket.socket(family, kind, protocol))
                probing.setblocking(False)  # noqa: FBT003 - socket's signature
                probing.connect_ex(where)
                selector.register(probing, selectors.EVENT_WRITE, (rank, probing))

        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                rank, probing = key.data
                selector.unregister(probing)
                if probing.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    unreached.discard(rank)
    return sorted(unreached)


def _name_listener(rank: int) -> str:
    return f"listener/{rank}"


def _name_finding(rank: int) -> str:
    return f"unreached/{rank}"
