"""A job of another launcher: its members meet in a store, and then form a group like any other members.

The store is torch's (MASTER_ADDR, MASTER_PORT). Without one, members on one host use files, which rank 0 removes after
the group is formed. The store has only the sequencer's address and the generation's key, so that a second `init()`
works in the same way. The files are readable by their user only. torch's store, with the key, is open to every process
that can reach its port.

Without an agent, rank 0 owns the sequencer as its child, for all generations.
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
from worker_runtime.coordination.sequencer_child import SequencerChild
from worker_runtime.coordination.wire import KEY_BYTES
from worker_runtime.engine import objects
from worker_runtime.engine.engine import Engine
from worker_runtime.errors import MeetingError
from worker_runtime.groups.backends.choice import GLOO_ALONE, Choice
from worker_runtime.membership.launchers import OneHost, World
from worker_runtime.rendezvous import Assignment, Endpoint, Membership, SequencerStartError, Slot, rank

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.02
_NO_SEQUENCER = "none: "  # before the reason, if there is no sequencer


class Store(Protocol):
    """A store that rank 0 writes and all members read.

    address: this host's address for the other members.
    """

    address: str

    def set(self, name: str, text: str) -> None:
        """Store a text under a name; for rank 0."""

    def get(self, name: str) -> str:
        """Wait for the text of a name; raises MeetingError after the time limit."""

    def clear(self) -> None:
        """Remove all texts, after all members have read them; for rank 0."""


class TorchStore:
    """torch's store, found by torch's rendezvous.

    Args:
        world: the launcher's world.
        master: where the members meet.
        limit: how long to try.

    Raises:
        MeetingError: the members did not meet in time.
    """

    def __init__(self, world: World, master: Endpoint, limit: timedelta) -> None:
        self._world = world
        self._master = master
        try:
            url = "env://"
            if "RANK" not in os.environ:
                url = f"tcp://{master}"
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
        """Do nothing: the store belongs to the launcher."""


class FileStore:
    """Files of this user, where all members are on one host.

    Args:
        world: the launcher's world.
        one_host: names the job, and so the files.
        limit: how long to wait for a file.
    """

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
            with contextlib.suppress(FileNotFoundError):  # rank 0 has not written it yet
                # Another user's file or link is ignored.
                if path.lstat().st_uid == os.getuid():
                    return path.read_text(encoding="utf-8")
            time.sleep(_POLL_SECONDS)
        raise MeetingError(
            self._world.launcher, str(path), f"rank 0 did not start within {self._limit.total_seconds():g} s"
        )

    def clear(self) -> None:
        """See `Store`."""
        while self._files:
            self._files.pop().unlink(missing_ok=True)

    def _find(self, name: str) -> Path:
        return self._path.with_name(f"{self._path.name}-{name.replace('/', '-')}")


class ForeignJob:
    """The exchange of the members of one world before they have a group; kept for a second `init()`.

    On rank 0 it owns the sequencer; `close` it at the end of the process.

    Args:
        world: the launcher's world.
        store: where the members exchange addresses.
        limit: how long to wait for the sequencer.
    """

    def __init__(self, world: World, store: Store, limit: timedelta) -> None:
        self._world = world
        self._store = store
        self._limit = limit
        self._sequencer = SequencerChild(store.address)

    @property
    def address(self) -> str:
        """The address on which the other members reach this host."""
        return self._store.address

    def share_key(self, generation: int) -> bytes:
        """The generation's key. Rank 0 creates it, and starts the sequencer for the generation.

        Raises:
            MeetingError: rank 0 did not start in time.
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
            MeetingError: rank 0 did not start in time.
            SequencerStartError: the sequencer could not be started.
        """
        name = f"{generation}/sequencer"
        if self._world.rank != 0:
            text = self._store.get(name)
            if text.startswith(_NO_SEQUENCER):
                raise SequencerStartError(text.removeprefix(_NO_SEQUENCER))
            port, _, address = text.partition(" ")
            return Endpoint(address, int(port))
        try:
            endpoint = self._sequencer.await_endpoint(self._limit)
        except SequencerStartError as error:
            self._store.set(name, f"{_NO_SEQUENCER}{error.reason}")  # else the others would wait
            raise
        self._store.set(name, f"{endpoint.port} {endpoint.address}")
        return endpoint

    def clear_store(self) -> None:
        """Remove the texts of rank 0, after the group is formed."""
        if self._world.rank == 0:
            self._store.clear()

    def close(self) -> None:
        """Stop the sequencer; a later `share_key` starts another."""
        self._sequencer.close()

    def abandon(self) -> None:
        """Abandon the parent's sequencer in a forked child."""
        self._sequencer.abandon()


def open_job(world: World, limit: timedelta) -> ForeignJob:
    """The job of a world, connected to its store.

    Raises:
        MeetingError: the store was unreachable for the time limit.
    """
    store: Store
    match world.store:
        case Endpoint() as master:
            store = TorchStore(world, master, limit)
        case OneHost() as host:
            store = FileStore(world, host, limit)
    return ForeignJob(world, store, limit)


def join_job(
    world: World, job: ForeignJob, generation: int, limit: timedelta, choice: Choice = GLOO_ALONE
) -> tuple[Assignment, Engine]:
    """Form a group with all members, and compute the local and cross ranks from their host names.

    Raises:
        MeetingError, GroupFormationError: the members did not start, or could not connect, in time.
        SequencerStartError: the sequencer could not be started.
    """
    unknown = Assignment(world.rank, world.size, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    membership = Membership(generation, unknown, job.share_key(generation))
    group = form(membership, job.await_sequencer, job.address, limit, choice=choice)
    engine = Engine.connect(group, limit)
    hosts = objects.allgather_object(engine, socket.gethostname(), "hosts")
    job.clear_store()
    return rank([Slot(host, index) for index, host in enumerate(hosts)])[world.rank], engine


def find_own_address(master: Endpoint) -> str:
    """The local address of the route to the master, which the other members can probably reach."""
    family, _, _, _, where = socket.getaddrinfo(master.address, master.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # sends nothing
        return str(probe.getsockname()[0])
