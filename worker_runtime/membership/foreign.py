"""A job of another launcher: its members find each other over a store, and then form a group as any other members.

The store is torch's own (MASTER_ADDR, MASTER_PORT) or, where all are on one host without one, files that rank 0 removes
as soon as the group stands. Either only says where the sequencer is and what the generation's key is, so that a second
`init()` works in the same way. The files are their user's alone; torch's store and what is in it, the key included, is
open to every peer that can reach it.

There is no agent here that could own a sequencer, so rank 0 has one as its child, for all generations.
"""

import contextlib
import os
import re
import secrets
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from torch.distributed.rendezvous import rendezvous

from worker_runtime.coordination.group import form
from worker_runtime.coordination.sequencer_process import SequencerProcess
from worker_runtime.coordination.wire import KEY_BYTES
from worker_runtime.engine import objects
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import MeetingError
from worker_runtime.groups.backends.choice import GLOO_ALONE, Choice
from worker_runtime.membership.launchers import Master, OneHost, World
from worker_runtime.rendezvous import Assignment, Endpoint, Membership, SequencerStartError, Slot, rank

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.02
_NONE = "none: "  # before a sentence, where there is no sequencer


class Store(Protocol):
    """Where rank 0 writes what all members read; address is where they reach this host."""

    address: str

    def set(self, name: str, text: str) -> None:
        """As rank 0: keep a text under this name."""

    def get(self, name: str) -> str:
        """Wait for the text of this name; raises when it does not come."""

    def clear(self) -> None:
        """As rank 0: remove what was set; all have read it."""


class TorchStore:
    """The store that torch's own rendezvous finds; its address is where this host is reached from there."""

    def __init__(self, world: World, master: Master, limit: timedelta) -> None:
        self._world = world
        self._master = master
        try:
            url = f"tcp://{master}" if "RANK" not in os.environ else "env://"
            self._store, _, _ = next(iter(rendezvous(url, world.rank, world.size, timeout=limit)))
        except (RuntimeError, ValueError, OSError) as error:
            raise MeetingError(world.launcher, str(master), str(error)) from None
        self.address = find_own_address(master)

    def set(self, name: str, text: str) -> None:
        """See `Store`."""
        self._store.set(f"hvd/{name}", text)

    def get(self, name: str) -> str:
        """See `Store`."""
        try:
            return str(self._store.get(f"hvd/{name}"), "utf-8")
        except RuntimeError as error:
            raise MeetingError(self._world.launcher, str(self._master), str(error)) from None

    def clear(self) -> None:
        """Nothing is to be removed: the store is the launcher's."""


class FileStore:
    """Files of this user's on the one host of all members."""

    address = LOOPBACK

    def __init__(self, world: World, one_host: OneHost, limit: timedelta) -> None:
        name = re.sub(r"[^A-Za-z0-9.-]", "_", one_host.job)
        self._path = Path(tempfile.gettempdir(), f"hvd-{os.getuid()}-{name}")
        self._world = world
        self._limit = limit
        self._files: list[Path] = []

    def set(self, name: str, text: str) -> None:
        """See `Store`."""
        with tempfile.NamedTemporaryFile("w", dir=self._path.parent, prefix=self._path.name, delete=False) as file:
            file.write(text)
        self._files.append(Path(file.name).replace(self._find(name)))

    def get(self, name: str) -> str:
        """See `Store`."""
        path = self._find(name)
        deadline = time.monotonic() + self._limit.total_seconds()
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_uid == os.getuid():  # another user's file leads to another user's store
                    return path.read_text(encoding="utf-8")
            time.sleep(_POLL_SECONDS)
        raise MeetingError(self._world.launcher, str(path), f"rank 0 did not come in {self._limit.total_seconds():g} s")

    def clear(self) -> None:
        """See `Store`."""
        while self._files:
            self._files.pop().unlink(missing_ok=True)

    def _find(self, name: str) -> Path:
        return self._path.with_name(f"{self._path.name}-{name.replace('/', '-')}")


class ForeignJob:
    """What the members of one world exchange before they have a group; kept for a second `init()`.

    On rank 0 it owns the world's sequencer; `close` it when the process leaves for good.
    """

    def __init__(self, world: World, store: Store, limit: timedelta) -> None:
        self._world = world
        self._store = store
        self._limit = limit
        self._sequencer = SequencerProcess(store.address)

    @property
    def address(self) -> str:
        """Where the other members reach this host."""
        return self._store.address

    def share_key(self, generation: int) -> bytes:
        """The generation's key; rank 0 makes it, and has the sequencer serve the generation.

        Raises:
            MeetingError: rank 0 did not come in time.
            SequencerStartError: the sequencer could not be started.
        """
        if self._world.rank != 0:
            return bytes.fromhex(self._store.get(f"{generation}/key"))
        key = secrets.token_bytes(KEY_BYTES)
        self._store.set(f"{generation}/key", key.hex())
        self._sequencer.activate(generation, self._world.size, key)
        return key

    def await_sequencer(self, generation: int) -> Endpoint:
        """Wait until rank 0's sequencer listens.

        Raises:
            MeetingError: rank 0 did not come in time.
            SequencerStartError: there will be none.
        """
        name = f"{generation}/sequencer"
        if self._world.rank != 0:
            text = self._store.get(name)
            if text.startswith(_NONE):
                raise SequencerStartError(text.removeprefix(_NONE))
            port, _, address = text.partition(" ")
            return Endpoint(address, int(port))
        try:
            endpoint = self._sequencer.await_endpoint(self._limit)
        except SequencerStartError as error:
            self._store.set(name, f"{_NONE}{error.reason}")  # else the others would wait
            raise
        self._store.set(name, f"{endpoint.port} {endpoint.address}")
        return endpoint

    def end(self) -> None:
        """The group stands: what led to it is not needed any more."""
        if self._world.rank == 0:
            self._store.clear()

    def close(self) -> None:
        """End the sequencer; a later `share_key` starts another."""
        self._sequencer.close()

    def abandon(self) -> None:
        """After a fork, in the child: let go of the parent's sequencer."""
        self._sequencer.abandon()


def open_job(world: World, limit: timedelta) -> ForeignJob:
    """The job that the members of a world form.

    Raises:
        MeetingError: its store was not reached in time.
    """
    store: Store
    match world.store:
        case Master() as master:
            store = TorchStore(world, master, limit)
        case OneHost() as host:
            store = FileStore(world, host, limit)
    return ForeignJob(world, store, limit)


def join_job(
    world: World, job: ForeignJob, generation: int, limit: timedelta, choice: Choice = GLOO_ALONE
) -> tuple[Assignment, Engine]:
    """Form a group with all members, and find the numbers that depend on which members share a host.

    Raises:
        MeetingError, GroupFormationError: the members did not come, or could not connect, in time.
        SequencerStartError: there is no sequencer.
    """
    unknown = Assignment(world.rank, world.size, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    membership = Membership(generation, unknown, job.share_key(generation))
    group = form(membership, job.await_sequencer, job.address, limit, choice=choice)
    engine = Engine.connect(group, limit)
    hosts = objects.allgather_object(engine, socket.gethostname(), "hosts")
    job.end()
    return rank([Slot(host, index) for index, host in enumerate(hosts)])[world.rank], engine


def find_own_address(master: Master) -> str:
    """The address from which the way to the master leads: what the members near it can reach."""
    family, _, _, _, where = socket.getaddrinfo(master.address, master.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])
