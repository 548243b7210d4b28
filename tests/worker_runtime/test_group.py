"""Forming the group of a generation: where it listens, and what it leaves alone."""

import os
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

import worker_runtime.torch as hvd
from rendezvous.core.model import Assignment, Endpoint, Membership
from rendezvous.errors import RendezvousError, SequencerStartError
from tests.worker_runtime.ranks import RankPool
from worker_runtime.cancellation import Cancellation
from worker_runtime.errors import GroupFormationError
from worker_runtime.group import Group, form

KEY = bytes(range(32))
LIMIT = timedelta(seconds=20)
LISTENING = "0A"  # the kernel's code in /proc/net/tcp
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, and as an IPv6 address


def find_listening_addresses() -> set[str]:
    """Where this process listens, as the kernel writes addresses."""
    own = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_socket()}
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path("/proc/self/net", table).read_text().splitlines()
    ]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in own}


def test_nothing_listens_on_all_interfaces(ranks: RankPool) -> None:
    for addresses in ranks.run(find_listening_addresses):
        assert addresses
        assert addresses <= LOOPBACK


def test_a_generation_of_one_has_no_group() -> None:
    alone = Membership(1, Assignment(0, 1, 0, 1, 0, 1), KEY)
    assert form(alone, Announcements(), "127.0.0.1", timedelta(seconds=1)) is None


def test_a_group_knows_its_connection_to_each_peer(ranks: RankPool) -> None:
    def body() -> object:
        from worker_runtime.runtime import RUNTIME  # noqa: PLC0415 - the one of the process that plays the rank

        groups = RUNTIME.executor._attempt.runner._groups
        assert groups is not None
        return [len(connections._names) for _, connections in groups._groups.values()]

    for _ in range(5):
        assert ranks.run(body, size=3) == [[2]] * 3


class Announcements:
    """Takes what rank 0 says; nobody else is there."""

    def __init__(self) -> None:
        self.heard: list[Endpoint] = []

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Remember it."""
        assert generation == 7
        self.heard.append(endpoint)

    def await_store(self, generation: int) -> Endpoint:
        """Say the same to everybody."""
        assert generation == 7
        return self.heard[0]

    def await_sequencer(self, generation: int) -> Endpoint:
        """Nobody comes so far."""
        raise AssertionError(generation)


class Rendezvous(Announcements):
    """Where two ranks in one process meet; `sequencer` is where it is, or why there is none."""

    def __init__(self, sequencer: Endpoint | Exception) -> None:
        super().__init__()
        self._has_store = threading.Event()
        self._sequencer = sequencer

    def open_store(self, generation: int, endpoint: Endpoint) -> None:
        """Remember it, and tell."""
        super().open_store(generation, endpoint)
        self._has_store.set()

    def await_store(self, generation: int) -> Endpoint:
        """Wait for it."""
        assert self._has_store.wait(LIMIT.total_seconds())
        return super().await_store(generation)

    def await_sequencer(self, generation: int) -> Endpoint:
        """Tell rank 0."""
        assert generation == 7
        if isinstance(self._sequencer, Exception):
            raise self._sequencer
        return self._sequencer


def form_pair(rendezvous: Rendezvous) -> list[Group | BaseException | None]:
    """What each of two ranks gets."""
    with ThreadPoolExecutor() as threads:
        memberships = [Membership(7, Assignment(rank, 2, rank, 2, 0, 1), KEY) for rank in range(2)]
        groups = [threads.submit(form, member, rendezvous, "127.0.0.1", LIMIT) for member in memberships]
        return [group.exception(2 * LIMIT.total_seconds()) or group.result() for group in groups]


def test_all_members_know_where_the_sequencer_is_and_the_key() -> None:
    sequencer = Endpoint("fe80::1", 4712)
    for rank, group in enumerate(form_pair(Rendezvous(sequencer))):
        assert isinstance(group, Group)
        assert (group.generation, group.rank, group.size) == (7, rank, 2)
        assert (group.sequencer, group.key) == (sequencer, KEY)
        assert KEY.hex() not in repr(group)
        assert repr(KEY) not in repr(group)
        group.torch_groups.close()


def test_all_members_are_told_why_there_is_no_sequencer() -> None:
    failures = form_pair(Rendezvous(SequencerStartError("on a, it ended with signal 9")))
    for failure in failures:
        assert isinstance(failure, RendezvousError)
        assert str(failure).endswith(
            "no sequencer, which orders the workers' collectives: on a, it ended with signal 9"
        )
        assert [frame.name for frame in traceback.extract_tb(failure.__traceback__)][-1] == "form"  # none of gloo's


def test_a_member_that_does_not_come_is_an_error_within_the_limit() -> None:
    membership = Membership(7, Assignment(0, 2, 0, 2, 0, 1), KEY)
    descriptors = []
    for _ in range(4):
        announcements = Announcements()
        with pytest.raises(GroupFormationError, match=r"rank 0 on 127\.0\.0\.1 could not connect .* 7 within 0\.6 s"):
            form(membership, announcements, "127.0.0.1", timedelta(seconds=0.6))
        assert announcements.heard[0].address == "127.0.0.1"
        descriptors.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - a count
    assert descriptors[-1] <= descriptors[0]  # fewer, where threads of earlier tests close theirs meanwhile


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_that_waits_for_others_can_be_told_to_stop(rank: int) -> None:
    """Long before the limit; gloo itself has no such way."""
    announcements, cancellation = Announcements(), Cancellation()
    membership = Membership(7, Assignment(rank, 2, rank, 2, 0, 1), KEY)
    with ThreadPoolExecutor() as threads:
        store = None
        if rank == 1:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            announcements.heard.append(Endpoint("127.0.0.1", store.port))
        forming = threads.submit(form, membership, announcements, "127.0.0.1", LIMIT, cancellation=cancellation)
        with pytest.raises(TimeoutError):
            forming.exception(0.5)
        began = time.monotonic()
        cancellation.cancel()
        assert isinstance(forming.exception(LIMIT.total_seconds()), GroupFormationError)
        assert time.monotonic() - began < LIMIT.total_seconds() / 2
        del store


def test_a_store_that_is_gone_is_an_error_within_the_limit() -> None:
    announcements = Announcements()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announcements.heard.append(Endpoint(*listener.getsockname()[:2]))
    membership = Membership(7, Assignment(1, 2, 1, 2, 0, 1), KEY)
    with pytest.raises(GroupFormationError, match=r"rank 1 on 127\.0\.0\.1"):
        form(membership, announcements, "127.0.0.1", timedelta(seconds=1))


def test_the_users_own_default_group_stays_possible(ranks: RankPool, tmp_path: Path) -> None:
    def body() -> object:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=hvd.rank(), world_size=hvd.size()
        )
        x = torch.ones(1)
        torch.distributed.all_reduce(x)
        torch.distributed.destroy_process_group()
        return x.item() + hvd.allreduce(torch.ones(1), op=hvd.Sum).item()

    assert ranks.run(body) == [4.0, 4.0]


def test_ranks_on_an_ipv6_address_form_a_group(ranks: RankPool) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 on this machine")

    def body() -> object:
        hvd.shutdown()
        os.environ["HVD_ADDRESS"] = "::1"
        hvd.init()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), find_listening_addresses()

    for total, addresses in ranks.run(body):
        assert total == 2.0
        assert "00000000000000000000000001000000" in addresses  # ::1, as the kernel writes it
        assert addresses <= {
            "00000000000000000000000001000000",
            *LOOPBACK,
        }  # gloo closes the former group's a little later
