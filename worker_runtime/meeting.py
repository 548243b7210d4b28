"""How the members of a world that another launcher made find each other, and then form a group as any other members.

torch's own store (MASTER_ADDR, MASTER_PORT) or, where all are on one host without one, a file that rank 0 removes as
soon as the group stands. Either only says where the group's store is, so that a second `init()` meets in the same way.
"""

import contextlib
import os
import re
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from torch.distributed.rendezvous import rendezvous

from worker_runtime import objects
from worker_runtime.errors import MeetingError
from worker_runtime.executor import Executor
from worker_runtime.group import form
from worker_runtime.membership import Assignment, Endpoint, Membership, Slot, rank
from worker_runtime.worlds import Master, OneHost, World

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.02


class Meeting(Protocol):
    """Where rank 0 says where its store is."""

    address: str

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Announce rank 0's store."""

    def await_store(self, generation: int) -> Endpoint:
        """Wait until rank 0 has announced its store."""

    def end(self, generation: int) -> None:
        """The group stands: what led to it is not needed any more."""


class StoreMeeting:
    """Meets in the store that torch's own rendezvous finds; address is where this host is reached from there."""

    def __init__(self, world: World, master: Master, limit: timedelta) -> None:
        try:
            url = f"tcp://{master}" if "RANK" not in os.environ else "env://"
            self._store, _, _ = next(iter(rendezvous(url, world.rank, world.size, timeout=limit)))
        except (RuntimeError, ValueError, OSError) as error:
            raise MeetingError(world.launcher, str(master), str(error)) from error
        self.address = find_own_address(master)

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Announce rank 0's store; see `Meeting`."""
        self._store.set(f"hvd/{generation}", f"{endpoint.port} {endpoint.address}")

    def await_store(self, generation: int) -> Endpoint:
        """Wait for rank 0's store; see `Meeting`."""
        port, _, address = self._store.get(f"hvd/{generation}").decode().partition(" ")
        return Endpoint(address, int(port))

    def end(self, generation: int) -> None:
        """Nothing is to be removed: the store is the launcher's."""


class FileMeeting:
    """Meets in a file of this user's on the one host of all members."""

    address = LOOPBACK

    def __init__(self, world: World, place: OneHost, limit: timedelta) -> None:
        name = re.sub(r"[^A-Za-z0-9.-]", "_", place.job)
        self._path = Path(tempfile.gettempdir(), f"hvd-{os.getuid()}-{name}")
        self._world = world
        self._limit = limit

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Announce rank 0's store; see `Meeting`."""
        with tempfile.NamedTemporaryFile("w", dir=self._path.parent, prefix=self._path.name, delete=False) as file:
            file.write(f"{endpoint.port} {endpoint.address}")
        Path(file.name).replace(self._find(generation))

    def await_store(self, generation: int) -> Endpoint:
        """Wait for rank 0's store; see `Meeting`."""
        path = self._find(generation)
        deadline = time.monotonic() + self._limit.total_seconds()
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_uid == os.getuid():  # a stranger's file leads to a stranger's store
                    port, _, address = path.read_text(encoding="utf-8").partition(" ")
                    return Endpoint(address, int(port))
            time.sleep(_POLL_SECONDS)
        raise MeetingError(self._world.launcher, str(path), f"rank 0 did not come in {self._limit.total_seconds():g} s")

    def end(self, generation: int) -> None:
        """All have read the file."""
        if self._world.rank == 0:
            self._find(generation).unlink(missing_ok=True)

    def _find(self, generation: int) -> Path:
        return self._path.with_name(f"{self._path.name}-{generation}")


def meet(world: World, limit: timedelta) -> Meeting:
    """The place where the members of a world meet.

    Raises:
        MeetingError: it was not reached in time.
    """
    match world.meeting:
        case Master() as master:
            return StoreMeeting(world, master, limit)
        case OneHost() as place:
            return FileMeeting(world, place, limit)


def join_world(world: World, meeting: Meeting, generation: int, limit: timedelta) -> tuple[Assignment, Executor]:
    """Form a group with all members, and find the numbers that depend on who shares a host.

    Raises:
        MeetingError, GroupFormationError: the members did not come, or could not connect, in time.
    """
    unknown = Assignment(world.rank, world.size, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    group = form(Membership(generation, unknown), meeting, meeting.address, limit)
    executor = Executor(group)
    hosts = objects.allgather_object(executor, socket.gethostname(), "hosts")
    meeting.end(generation)
    return rank([Slot(host, index) for index, host in enumerate(hosts)])[world.rank], executor


def find_own_address(master: Master) -> str:
    """The address from which the way to the master leads: what the members near it can reach."""
    family, _, _, _, where = socket.getaddrinfo(master.address, master.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])
