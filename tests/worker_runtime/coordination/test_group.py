"""Forming the group of a generation: where it listens, and what it leaves alone."""

import os
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import HashStore

import worker_runtime.torch as hvd
from rendezvous.core.model import Assignment, Endpoint, Membership
from rendezvous.errors import SequencerStartError
from tests.ports import reserve_port
from tests.waiting import wait_until
from tests.worker_runtime.coordination.sequencer.client import Process
from tests.worker_runtime.ranks import RankPool
from worker_runtime.coordination.group import Cancellation, Group, form
from worker_runtime.errors import GroupFormationError
from worker_runtime.groups import gloo, reachability
from worker_runtime.groups.gloo import Gloo, duplicate, find_listener, list_sockets

KEY = bytes(range(32))
LIMIT = timedelta(seconds=60)
LISTENING = "0A"  # the kernel's code in /proc/net/tcp
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1, and as an IPv6 address


def be(rank: int) -> Membership:
    """A member of a generation of two."""
    return Membership(7, Assignment(rank, 2, rank, 2, 0, 1), KEY)


def find_listening_addresses() -> set[str]:
    """Where this process listens, as the kernel writes addresses."""
    own = {str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_socket()}
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path("/proc/self/net", table).read_text().splitlines()
    ]
    return {row[1].rpartition(":")[0] for row in rows if row[3] == LISTENING and f"socket:[{row[9]}]" in own}


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_gloo_without_its_other_members_or_a_local_address_raises(address: str) -> None:
    groups = Gloo(HashStore(), lambda *_: ("", []), address, timedelta(hours=1))
    with pytest.raises(RuntimeError):
        groups.make("set", 0, 2, "cpu", timedelta(seconds=0.5))


def test_a_group_does_not_listen_on_all_interfaces(ranks: RankPool) -> None:
    for addresses in ranks.run(find_listening_addresses):
        assert addresses
        assert addresses <= LOOPBACK


def find_open_ports() -> list[int]:
    """Where gloo's listening sockets in this process still take connections."""
    ports = []
    for name, number in list_sockets().items():
        with duplicate(name, number) or socket.socket() as own:
            is_tcp = own.family in {socket.AF_INET, socket.AF_INET6} and own.type == socket.SOCK_STREAM
            if is_tcp and own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                try:
                    socket.create_connection(own.getsockname()[:2], 0.3).close()
                except TimeoutError:
                    continue
                ports.append(own.getsockname()[1])
    return ports


def test_once_a_group_stands_no_member_takes_connections(ranks: RankPool) -> None:
    assert not any(ranks.run(find_open_ports))


def test_a_generation_of_one_has_no_group() -> None:
    alone = Membership(1, Assignment(0, 1, 0, 1, 0, 1), KEY)
    assert form(alone, Finder(AssertionError()), "127.0.0.1", timedelta(seconds=1)) is None


class Finder:
    """Returns where the sequencer of generation 7 is, or raises why there is none."""

    def __init__(self, sequencer: Endpoint | Exception) -> None:
        self._sequencer = sequencer

    def __call__(self, generation: int) -> Endpoint:
        """As `WorkerClient.await_sequencer`."""
        assert generation == 7
        if isinstance(self._sequencer, Exception):
            raise self._sequencer
        return self._sequencer


@pytest.fixture
def sequencer() -> Iterator[Endpoint]:
    """A sequencer that serves generation 7, of two members."""
    with Process() as process:
        process.activate(7, 2)
        yield Endpoint("127.0.0.1", process.port)


def form_pair(find: Finder) -> list[Group | BaseException | None]:
    """What each of two ranks gets."""
    with ThreadPoolExecutor() as threads:
        groups = [threads.submit(form, be(rank), find, "127.0.0.1", LIMIT) for rank in range(2)]
        return [group.exception(2 * LIMIT.total_seconds()) or group.result() for group in groups]


def test_all_members_know_where_the_sequencer_is_and_the_key(sequencer: Endpoint) -> None:
    for rank, group in enumerate(form_pair(Finder(sequencer))):
        assert isinstance(group, Group)
        assert (group.generation, group.rank, group.size) == (7, rank, 2)
        assert (group.sequencer, group.key) == (sequencer, KEY)
        assert KEY.hex() not in repr(group)
        assert repr(KEY) not in repr(group)
        group.torch_groups.close()


def test_without_a_sequencer_rank_0_says_why() -> None:
    with pytest.raises(SequencerStartError, match=r"on a, it ended with SIGKILL \(signal 9\)") as caught:
        form(be(0), Finder(SequencerStartError("on a, it ended with SIGKILL (signal 9)")), "127.0.0.1", LIMIT)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "form"  # none of gloo's


def test_settings_of_rank_0_before_init_hold_for_the_sequencer(ranks: RankPool) -> None:
    """The sequencer's process began before, with another environment."""

    def body() -> None:
        seconds = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0.2"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in seconds.items():
                patch.setenv(name, value if hvd.rank() == 0 else "1000")
            hvd.shutdown()
            hvd.init()
        handle = hvd.allreduce_async(torch.ones(1), name=f"of rank {hvd.rank()}")
        wait_until(lambda: hvd.poll(handle))  # `init()` would wait in the collective: a deadlock
        with pytest.raises(hvd.HorovodInternalError, match=r"for more than 0\.2 seconds, the stall limit"):
            hvd.synchronize(handle)

    ranks.run(body)


def test_a_member_that_does_not_come_is_an_error_within_the_limit(sequencer: Endpoint) -> None:
    descriptors = []
    message = r"^Horovod initialization failed: rank 0 on 127\.0\.0\.1 could not connect .* 7 within 0\.6 s"
    for _ in range(4):
        with pytest.raises(GroupFormationError, match=message):
            form(be(0), Finder(sequencer), "127.0.0.1", timedelta(seconds=0.6))
        descriptors.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - only their number counts
    assert descriptors[-1] <= descriptors[0]  # fewer, where threads of earlier tests close theirs meanwhile


@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_that_waits_for_others_can_be_stopped(sequencer: Endpoint, rank: int) -> None:
    """Long before the limit; gloo itself has no such way."""
    cancellation = Cancellation()
    with ThreadPoolExecutor() as threads:
        forming = threads.submit(form, be(rank), Finder(sequencer), "127.0.0.1", 9 * LIMIT, cancellation=cancellation)
        with pytest.raises(TimeoutError):
            forming.exception(0.5)
        cancellation.cancel()
        assert isinstance(forming.exception(LIMIT.total_seconds()), GroupFormationError)


def test_a_cancellation_ends_works_that_it_covers_earlier_and_later() -> None:
    cancellation, ended = Cancellation(), list[str]()
    for name in ("first", "second"):
        cancellation.cover(lambda name=name: ended.append(name))
    assert ended == []
    cancellation.cancel()
    cancellation.cover(lambda: ended.append("late"))
    assert ended == ["first", "second", "late"]


def test_a_sequencer_that_is_gone_is_an_error_within_the_limit() -> None:
    with reserve_port() as port, pytest.raises(GroupFormationError, match=r"rank 0 on 127\.0\.0\.1"):
        form(be(0), Finder(Endpoint("127.0.0.1", port)), "127.0.0.1", timedelta(seconds=1))


TRIES = 10
GUESSES = b"".join(number.to_bytes(8, sys.byteorder) for number in range(4))  # of what gloo calls its connections


@pytest.mark.parametrize(
    ("rank", "says", "times"),
    [(0, b"", TRIES), (0, GUESSES, TRIES - 1), (0, GUESSES, TRIES), (1, GUESSES, TRIES)],
    ids=["silent", "until the last time", "each time", "each time at rank 1"],
)
def test_a_stranger_that_connects_while_a_group_forms_has_no_part_in_it(
    ranks: RankPool, rank: int, says: bytes, times: int
) -> None:
    """A silent stranger does no harm; for one that poses as a member the group forms again, and in the end fails.

    The stranger may hold the members' other listeners too, which therefore no rank asks.
    """

    def body() -> tuple[float | str, list[int]]:
        is_disturbed = hvd.rank() == rank
        hvd.shutdown()
        strangers: list[socket.socket] = []

        def find_and_disturb(present: Mapping[str, int]) -> socket.socket | None:
            listener = find_listener(present)
            assert listener is not None
            if is_disturbed and len(strangers) < 4 * times:
                for start in range(0, 32, 8):
                    strangers.append(socket.create_connection(listener.getsockname()[:2]))
                    strangers[-1].sendall(says[start : start + 8])
            return listener

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gloo, "find_listener", find_and_disturb)
            patch.setattr(reachability, "probe", list)  # no other member answers
            try:
                hvd.init()
            except GroupFormationError as error:
                return str(error), []
            finally:
                for stranger in strangers:
                    stranger.close()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), find_open_ports()

    for found, ports in ranks.run(body):
        assert not ports
        assert found == 2.0 if not says or times < TRIES else "leads to no other member" in str(found), found


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
        }  # gloo closes the former group's sockets a little later
