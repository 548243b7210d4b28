"""Doors: they tell, when the members of a generation could not all connect, who does not reach whom.

Each member listens on its own address while the group is formed, and says in the store where; nobody is ever let in.
When the limit is over, each knocks at the others' doors, in a thread, and writes down who did not open: gloo itself
does not say whom it waits for, and may wait five times as long. Whoever fails looks what all have found, so that all
tell the same.
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

KNOCK_SECONDS = 2.0  # for a connection between hosts that reach each other, lost packets included
_WAIT = timedelta(seconds=KNOCK_SECONDS + 3.0)  # for what the others find, which may notice later that it has failed
_MOST_PAIRS = 4  # that are named
_BACKLOG = 4096  # connections that nobody takes


class UnreachedError(RuntimeError):
    """Some members of a generation do not reach some others: the sentence names them.

    pairs: who does not reach whom, by rank.
    """

    def __init__(self, pairs: tuple[tuple[int, int], ...], addresses: dict[int, str]) -> None:
        named = [f"rank {one} does not reach rank {other} on {addresses[other]}" for one, other in pairs[:_MOST_PAIRS]]
        rest = len(pairs) - len(named)
        super().__init__(", ".join([*named, f"and so on for {rest} more"] if rest else named))
        self.pairs = pairs


class Door:
    """One member's; open while it is entered.

    Args:
        store: of the generation.
        rank, size: this member's.
        address: on which the others reach it.
        limit_seconds: until it knocks at the others' doors, unless it is closed before.

    Raises:
        OSError: nothing can listen on this address.
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
            store.set(_name_door(rank), f"{self._listener.getsockname()[1]} {address}")
        except BaseException:
            self._listener.close()
            raise
        self._limit_seconds = limit_seconds
        self._is_closed = threading.Event()
        self._lock = threading.Lock()  # of who knocks, and tells
        self._knocking = threading.Thread(target=self._knock_later, name="hvd-door", daemon=True)

    def __enter__(self) -> Self:
        self._knocking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del kind, error, traceback
        self._is_closed.set()
        self._knocking.join()
        self._listener.close()

    def look_who_is_unreached(self) -> None:
        """Return when all members that are there reach each other, as far as they could be asked.

        Raises:
            UnreachedError: they do not.
        """
        pairs: list[tuple[int, int]] = []
        addresses: dict[int, str] = {}
        with contextlib.suppress(RuntimeError):  # the store has gone, for rank 0 has: so may have others who were there
            self._tell()
            doors = self._list_doors()
            pairs = sorted(self._hear([self._rank, *doors]))
            addresses = {rank: address for rank, (address, _) in doors.items()}
        if pairs:
            raise UnreachedError(tuple(pairs), {**addresses, self._rank: self._address})

    def _knock_later(self) -> None:
        if not self._is_closed.wait(self._limit_seconds):
            with contextlib.suppress(RuntimeError):  # the store has gone
                self._tell()

    def _tell(self) -> None:
        """Knock at the others' doors, and tell who does not open; once."""
        with self._lock:
            if self._has_told(self._rank):
                return
            doors = self._list_doors()
            # Who has told what it has found may have left meanwhile, so that a door which is closed means nothing.
            unreached = knock({rank: doors[rank] for rank in doors if not self._has_told(rank)})
            self._store.set(_name_finding(self._rank), ",".join(map(str, unreached)))

    def _list_doors(self) -> dict[int, tuple[str, int]]:
        """The address and port of each other member that has come so far."""
        doors = {}
        for rank in self._others:
            if self._store.check([_name_door(rank)]):
                port, _, address = self._store.get(_name_door(rank)).decode().partition(" ")
                doors[rank] = address, int(port)
        return doors

    def _has_told(self, rank: int) -> bool:
        return bool(self._store.check([_name_finding(rank)]))

    def _hear(self, ranks: Iterable[int]) -> list[tuple[int, int]]:
        """What these members have found, as far as they tell it soon."""
        with contextlib.suppress(RuntimeError):  # some do not
            self._store.wait([_name_finding(rank) for rank in ranks], _WAIT)
        pairs = []
        for rank in ranks:
            if self._has_told(rank):
                found = self._store.get(_name_finding(rank)).decode()
                pairs += [(rank, int(other)) for other in found.split(",") if other]
        return pairs


def knock(doors: dict[int, tuple[str, int]]) -> list[int]:
    """Which of these, by rank, with their addresses and ports, do not open in time."""
    deadline = time.monotonic() + KNOCK_SECONDS
    unreached = set(doors)
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for rank, (address, port) in doors.items():
            with contextlib.suppress(OSError):  # an address that is none, or that no route leads to
                family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
                knocking = stack.enter_context(socket.socket(family, kind, protocol))
                knocking.setblocking(False)  # noqa: FBT003 - socket's signature
                knocking.connect_ex(where)
                selector.register(knocking, selectors.EVENT_WRITE, (rank, knocking))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                rank, knocking = key.data
                selector.unregister(knocking)
                if knocking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    unreached.discard(rank)
    return sorted(unreached)


def _name_door(rank: int) -> str:
    return f"door/{rank}"


def _name_finding(rank: int) -> str:
    return f"unreached/{rank}"
