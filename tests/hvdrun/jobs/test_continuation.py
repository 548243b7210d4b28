"""What a server of a detached job leaves to the next one."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import pytest

from hvdrun.accounts.history import History
from hvdrun.console.marks import read_local_clock
from hvdrun.console.output import OutputPrinter
from hvdrun.errors import LaunchError
from hvdrun.jobs.continuation import Continuation, LosableJournal, ServerLostError, check_journal, open_continuation
from hvdrun.jobs.detach import DetachedServer
from hvdrun.jobs.errors import ResumeRefusedError
from hvdrun.jobs.folder import JOURNAL, JobFolder
from hvdrun.jobs.guardian import Life
from hvdrun.jobs.log import LogWriter
from hvdrun.jobs.record import JobRecord
from rendezvous.core import membership
from rendezvous.core.messages import HostsChanged
from rendezvous.core.model import Host, Policy
from rendezvous.core.state import State
from rendezvous.errors import ListenError
from rendezvous.journal.errors import JournalUnwritableError
from rendezvous.journal.sqlite import SqliteJournal, open_journal
from rendezvous.wire.orders import OutputStream
from tests.hvdrun.jobs.detached import holding
from tests.waiting import in_loop

STATE = membership.begin(Policy.static(2))


class Printer:
    """An output that holds nothing back."""

    def call_when_released(self, done: Callable[[], None]) -> None:
        """See `OutputPrinter`."""
        done()


OUTPUT = cast("OutputPrinter", Printer())


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    folder = JobFolder(tmp_path / "job")
    folder.create(JobRecord("job", ("true",)))
    folder.lock()
    return folder


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of the line between a guardian and its server."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def servers(folder: JobFolder, line: tuple[socket.socket, socket.socket]) -> Iterator[dict[int, DetachedServer]]:
    """The first server, and one that follows when it was killed."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    writer = LogWriter(folder.path, {descriptor: OutputStream.STDOUT}, read_local_clock)
    yield {
        number: DetachedServer(folder, Life(number, killed_by, line[1]), writer, lambda: None)
        for number, killed_by in ((1, 0), (2, signal.SIGKILL))
    }
    writer.end(60)
    os.close(descriptor)


def refuse(sentence: str) -> None:
    """Nothing is to be said."""
    raise AssertionError(sentence)


@in_loop
async def test_the_next_server_finds_what_the_former_one_has_kept(servers: dict[int, DetachedServer]) -> None:
    first = open_continuation(servers[1], OUTPUT, refuse)
    assert first is not None
    assert (first.state, first.network, first.read_history(), first.journal.term) == (None, None, (None, None), 1)
    history = History()
    secret, key = first.secret, first.keep_authority(lambda: b"key")
    first.keep_network(b"facts")
    first.keep_joining(b"keys")
    first.keep_history(history, None)
    await first.journal.write(STATE)
    await first.journal.close()

    second = open_continuation(servers[2], OUTPUT, refuse)
    assert second is not None
    assert second.state is not None
    assert (second.secret, second.keep_authority(lambda: b"another"), second.network) == (secret, key, b"facts")
    assert second.joining == b"keys"
    assert isinstance(second.read_history()[0], History)
    assert second.journal.term == 2
    assert 0 <= second.age_seconds < 60
    await second.journal.close()


KILLED = "the server of this job was ended by SIGKILL, and another one goes on"
RESUMED = "this job goes on, after its server and its guardian had ended"


@in_loop
async def test_the_next_server_names_the_workers_that_it_starts(servers: dict[int, DetachedServer]) -> None:
    sentences = []
    for server in servers.values():
        continuation = open_continuation(server, OUTPUT, refuse)
        assert continuation is not None
        sentences += [continuation.describe(), continuation.describe(["a", "b"])]
        await continuation.journal.close()
    begins = "it starts the workers on a, b, from which nothing had been heard"
    assert sentences == [
        f"{RESUMED}: with the workers that still run",
        f"{RESUMED}: {begins}",
        f"{KILLED}: no worker was stopped for that",
        f"{KILLED}: {begins}",
    ]


@in_loop
async def test_a_job_that_had_not_begun_begins_in_the_next_server(servers: dict[int, DetachedServer]) -> None:
    for number in (1, 2):
        continuation = open_continuation(servers[number], OUTPUT, refuse)
        assert continuation is not None
        assert (continuation.state, continuation.network) == (None, None)
        await continuation.journal.close()


@in_loop
async def test_a_job_whose_journal_was_removed_is_not_started_a_second_time(
    servers: dict[int, DetachedServer], folder: JobFolder
) -> None:
    first = open_continuation(servers[1], OUTPUT, refuse)
    assert first is not None
    first.keep_network(b"facts")
    await first.journal.write(STATE)
    await first.journal.close()
    for path in (folder.path / JOURNAL).glob("journal.db*"):
        path.unlink()
    with pytest.raises(ServerLostError, match="its journal was removed"):
        open_continuation(servers[2], OUTPUT, refuse)


def test_where_there_can_be_no_journal_the_first_server_is_the_only_one(
    servers: dict[int, DetachedServer], folder: JobFolder
) -> None:
    obstacle = folder.path / JOURNAL / "journal.db"
    obstacle.mkdir(parents=True)
    said: list[str] = []
    assert open_continuation(servers[1], OUTPUT, said.append) is None
    (sentence,) = said
    assert sentence.endswith("; the job ends with its server")
    obstacle.rmdir()
    with pytest.raises(ServerLostError, match="it has no journal"):
        open_continuation(servers[2], OUTPUT, refuse)


@in_loop
async def test_a_journal_that_cannot_be_opened_now_is_left_to_a_later_server(
    servers: dict[int, DetachedServer], line: tuple[socket.socket, socket.socket]
) -> None:
    first = open_continuation(servers[1], OUTPUT, refuse)
    assert first is not None
    first.keep_network(b"facts")
    await first.journal.write(STATE)
    line[0].recv(16)  # that a job begins is decided
    with pytest.raises(LaunchError, match="another server of this job runs"):
        open_continuation(servers[2], OUTPUT, refuse)
    with pytest.raises(BlockingIOError):
        line[0].recv(16, socket.MSG_DONTWAIT)
    await first.journal.close()
    second = open_continuation(servers[2], OUTPUT, refuse)
    assert second is not None
    assert second.network == b"facts"
    await second.journal.close()


@in_loop
async def test_a_port_is_reserved_by_its_number_or_any(
    servers: dict[int, DetachedServer], line: tuple[socket.socket, socket.socket]
) -> None:
    continuation = open_continuation(servers[1], OUTPUT, refuse)
    assert continuation is not None
    port = continuation.reserve("127.0.0.1")
    _, kept, _, _ = socket.recv_fds(line[0], 16, 1)
    assert continuation.reserve("127.0.0.1", port) == port  # bound twice, and not listening
    with closing(socket.socket(fileno=kept[0])) as listening:
        listening.listen()
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
            continuation.reserve("127.0.0.1", port)
    await continuation.journal.close()


@in_loop
async def test_a_message_is_acknowledged_when_it_is_in_the_log(servers: dict[int, DetachedServer]) -> None:
    continuation = open_continuation(servers[1], OUTPUT, refuse)
    assert continuation is not None
    done = asyncio.Event()
    note_taken = continuation.make_term().note_taken
    assert note_taken is not None
    note_taken("agent", 7)
    continuation.keep_shown("agent", 7, done.set)
    await done.wait()
    await continuation.journal.close()
    following = Continuation(servers[2], OUTPUT, refuse)
    assert following.former_shown == {"agent": 7}
    await following.journal.close()


@in_loop
async def test_the_server_takes_the_lock_of_the_job_when_its_guardian_has_gone(
    servers: dict[int, DetachedServer], line: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another process has it for a moment, as `hvdrun resume` does."""
    taken, tries = asyncio.Event(), iter([True, False])

    def lock_again(_: JobFolder) -> None:
        if next(tries):
            raise BlockingIOError
        taken.set()

    continuation = open_continuation(servers[1], OUTPUT, refuse)
    assert continuation is not None
    monkeypatch.setattr(JobFolder, "lock_again", lock_again)
    continuation.follow_guardian()
    await asyncio.sleep(0)
    assert not taken.is_set()
    line[0].close()
    await taken.wait()
    await continuation.journal.close()


class FullJournal:
    """A journal whose disk is full from the second write on."""

    term = 1

    def __init__(self) -> None:
        self.written = 0

    def read(self) -> State | None:
        """See `Journal`."""

    def get(self, name: str) -> bytes | None:
        """See `Journal`."""
        return name.encode()

    def put(self, name: str, value: bytes) -> None:
        """See `Journal`."""
        raise JournalUnwritableError(Path(name), value.decode())

    async def write(self, _: State) -> None:
        """See `Journal`."""
        self.written += 1
        if self.written > 1:
            raise JournalUnwritableError(Path("journal.db"), "the disk is full")

    async def close(self) -> None:
        """See `Journal`."""


@contextmanager
def closing_journal(journal: SqliteJournal) -> Iterator[SqliteJournal]:
    """Close it in the end."""
    yield journal
    asyncio.run(journal.close())


@in_loop
async def test_a_journal_that_cannot_be_written_is_removed_and_the_job_continues(tmp_path: Path) -> None:
    for name in ("journal.db", "journal.db-wal", "other"):
        (tmp_path / name).touch()
    said: list[str] = []
    journal = LosableJournal(FullJournal(), tmp_path, said.append)
    for _ in range(3):
        await journal.write(STATE)
        journal.put("name", b"value")
    (sentence,) = said
    assert sentence.endswith("; the job goes on, and from now on it ends with its server")
    assert os.listdir(tmp_path) == ["other"]  # noqa: PTH208 - a path of asyncio may not be listed so
    await journal.close()


def test_a_journal_that_is_removed_in_part_is_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its log has not written into the file yet would be missing in the state of a server that continues."""
    first, later = STATE, membership.step(STATE, HostsChanged((Host("a", 2),)))[0]
    with closing_journal(open_journal(tmp_path / "kept", refuse)) as former:
        asyncio.run(former.write(first))
    with closing_journal(open_journal(tmp_path / "kept", refuse)) as kept:
        asyncio.run(kept.write(later))
        shutil.copytree(tmp_path / "kept", tmp_path / "left")

    unlink, removed = Path.unlink, list[Path]()

    def remove_one(path: Path, *, missing_ok: bool = False) -> None:
        """The server is killed before it removes another one."""
        if not removed:
            unlink(path, missing_ok=missing_ok)
        removed.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", remove_one)
        LosableJournal(FullJournal(), tmp_path / "left", lambda _: None).put("name", b"value")
    assert len(removed) > 1
    with closing_journal(open_journal(tmp_path / "left", refuse)) as left:
        assert left.read() is None


def test_a_journal_is_looked_at_before_a_server_continues(folder: JobFolder) -> None:
    place = folder.path / JOURNAL
    asyncio.run(open_journal(place, refuse).close())
    check_journal(folder)
    (place / "journal.db").write_bytes(b"0" * 8192)
    with pytest.raises(ResumeRefusedError, match="journal"):
        check_journal(folder)


def test_a_journal_is_left_alone_while_another_process_has_its_job(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "job")
    folder.create(JobRecord("job", ("true",)))
    with holding(folder), pytest.raises(ResumeRefusedError, match=r"cannot be resumed: it runs\."):
        check_journal(folder)
    assert not (folder.path / JOURNAL).exists()


def test_a_launch_that_is_damaged_is_known(folder: JobFolder) -> None:
    assert folder.read_launch() is None
    folder.write_launch("1.0", b"launch")
    assert folder.read_launch() == ("1.0", b"launch")
    folder.launch_path.write_bytes(folder.launch_path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"[0-9a-f]{8}"):
        folder.read_launch()
