"""What a detached job keeps, so that another server of it continues where the last one was killed.

The journal has the state of the job, the key of its authority, its secret, its network, and its history. The guardian
holds its ports. Where there can be no journal, as on a file server, the job ends with its server.
"""

import asyncio
import pickle
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdrun.console.output import OutputPrinter
from hvdrun.errors import LaunchError
from hvdrun.jobs.detach import DetachedServer
from hvdrun.jobs.errors import ResumeRefusedError
from hvdrun.jobs.folder import JOURNAL, JobFolder
from hvdrun.jobs.guardian import Life
from hvdrun.jobs.shown import Shown, read_position
from hvdrun.startup.paths import exists
from rendezvous.core.outcome import name_signal
from rendezvous.core.state import State
from rendezvous.errors import ListenError
from rendezvous.journal.errors import (
    JournalDamagedError,
    JournalError,
    JournalPlaceError,
    JournalTooNewError,
    JournalUnwritableError,
)
from rendezvous.journal.journal import Journal
from rendezvous.journal.sqlite import open_journal
from rendezvous.wire.notifications import KEY_BYTES

if TYPE_CHECKING:
    from rendezvous.server.state_machine import Term

_AUTHORITY, _SECRET, _NETWORK, _HISTORY = "authority", "secret", "network", "history"
_JOINING = "joining"
_LOCK_RETRY_SECONDS = 0.1
_BEGUN = "begun"  # a file beside the journal: hosts know of the job
_UNKEPT = "unkept"  # a file in the journal's place: the job ends with its first server
_PERMANENT = (JournalDamagedError, JournalTooNewError, JournalPlaceError)  # no later server can use the journal either


class ServerLostError(LaunchError):
    """The server of a detached job was killed, and no other one can continue the job.

    Cause: It was killed before the job had begun, or its journal cannot be used.
    Remedy: Start the job again, from its checkpoint if it has one. Its workers on the machine of the launcher are told
        to stop. Those on other hosts end after `--server-timeout`, or when `hvdrun stop --here JOB` is called there.
    """

    def __init__(self, life: Life, reason: str) -> None:
        how = name_signal(life.killed_by) if life.killed_by else "what has ended its guardian too"
        super().__init__(f"the server of this job was ended by {how}, and no other can continue the job: {reason}.")


class Continuation:
    """What the present server of a detached job takes over from the one before it, and leaves to the next.

    Args:
        server: the present one.
        output: of the job; a message whose lines it holds back is not noted as shown.
        warn: prints a sentence.

    folder: of the job. life: which server of it this is.
    journal: of the job.
    state: where the job stands; None before it has begun.

    Raises:
        JournalError: there can be no journal.
        OSError: the folder cannot be written.
    """

    def __init__(self, server: DetachedServer, output: OutputPrinter, warn: Callable[[str], None]) -> None:
        self.folder = folder = server.folder
        self.life = server.life
        self._writer = writer = server.writer
        former = read_position(folder.path)
        self.former_shown = {} if former is None else dict(former.numbers)
        self._taken = dict(self.former_shown)  # the number of each agent's last message that was given to the console
        self._output = output
        self.journal: Journal = LosableJournal(open_journal(folder.path / JOURNAL, warn), folder.path / JOURNAL, warn)
        self._shown = Shown(folder.path, writer.locate)
        self.state: State | None = self.journal.read()

    @property
    def secret(self) -> bytes:
        """The secret from which the keys of generations are made: a generation has the same key in each server."""
        return self._get_or_put(_SECRET, lambda: secrets.token_bytes(KEY_BYTES))

    @property
    def age_seconds(self) -> float:
        """How long ago the job has begun."""
        return self.folder.age_seconds

    def make_term(self) -> "Term":
        """The term of this server in the rendezvous."""
        from rendezvous.server.state_machine import Term  # noqa: PLC0415 - the agents boot meanwhile

        return Term(
            number=self.journal.term,
            journal=self.journal,
            state=self.state,
            secret=self.secret,
            shown=self.former_shown,
            keep_shown=self.keep_shown,
            note_taken=self._taken.__setitem__,
        )

    def keep_authority(self, create: Callable[[], bytes]) -> bytes:
        """The key of the job's authority, which the first server creates; PEM."""
        return self._get_or_put(_AUTHORITY, create)

    @property
    def network(self) -> bytes | None:
        """The network of the job, as the former server has kept it."""
        return None if self.state is None else self.journal.get(_NETWORK)

    def keep_network(self, facts: bytes) -> None:
        """Keep the network of the job, before a host is told of it."""
        self.journal.put(_NETWORK, facts)
        with suppress(OSError):  # the disk fails, and so does the start of another server
            (self.folder.path / JOURNAL / _BEGUN).touch(mode=0o600)

    @property
    def joining(self) -> bytes | None:
        """Where and by which keys agents join by themselves, as a former server has kept it."""
        return self.journal.get(_JOINING)

    def keep_joining(self, facts: bytes) -> None:
        """Keep where and by which keys agents join by themselves."""
        self.journal.put(_JOINING, facts)

    def read_history(self) -> tuple[Any, Any]:
        """The history of the job, and the index of its files, as a former server has kept them; None for none."""
        return _read_history(self.journal)

    def keep_history(self, history: object, index: object) -> None:
        """Keep the history of the job, and the index of its files."""
        self.journal.put(_HISTORY, pickle.dumps((history, index)))

    def note_begun(self, agent: str, done: Callable[[], None]) -> None:
        """Note on disk that an agent has started a worker, so that the next server waits for it and starts no other.

        Args:
            agent: its identity.
            done: called then, in the running event loop.
        """
        if agent in self._taken:
            done()
        else:
            self._taken[agent] = 0
            self._output.call_when_released(lambda: self._note(done))

    def keep_shown(self, agent: str, number: int, done: Callable[[], None]) -> None:
        """Note on disk that a message of an agent was shown, once it is in the log.

        Args:
            agent: its identity.
            number: of the message.
            done: called then, in the running event loop.
        """
        del agent, number  # `_taken` has it
        self._output.call_when_released(lambda: self._note(done))

    def _note(self, done: Callable[[], None]) -> None:
        """Note which messages the log has, when all is written that the console has given to it."""
        loop, numbers = asyncio.get_running_loop(), dict(self._taken)

        def note() -> None:
            self._shown.note(numbers)
            with suppress(RuntimeError):  # the job has ended
                loop.call_soon_threadsafe(done)

        self._writer.call_when_written(note)

    def reserve(self, address: str, number: int = 0) -> int:
        """A port at this address, which the guardian keeps for all servers of the job.

        Args:
            address: of this machine.
            number: of the port; 0 for a free one.

        Raises:
            ListenError: this machine does not have the address, or another program has the port.
        """
        ((family, _, _, _, place), *_) = socket.getaddrinfo(
            address, number, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        with socket.socket(family) as port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                port.bind(place)
            except OSError as error:
                where = f"{address}:{number}" if number else address
                raise ListenError(where, error.strerror or str(error)) from error
            self.life.keep(port)
            return int(port.getsockname()[1])

    def describe(self, unheard: Sequence[str] = ()) -> str:
        """What has become of the former server, as a sentence.

        Args:
            unheard: the hosts on which no worker had been started, as far as that server knew.
        """
        sentence, workers = (
            "this job goes on, after its server and its guardian had ended",
            "with the workers that still run",
        )
        if self.life.killed_by:
            how = name_signal(self.life.killed_by)
            sentence = f"the server of this job was ended by {how}, and another one goes on"
            workers = "no worker was stopped for that"
        if unheard:
            workers = f"it starts the workers on {', '.join(unheard)}, from which nothing had been heard"
        return f"{sentence}: {workers}"

    def follow_guardian(self) -> None:
        """Take the lock of the job when the guardian has gone: nobody would start another server."""
        loop, line = asyncio.get_running_loop(), self.life.line

        def note_end() -> None:
            loop.remove_reader(line)
            take()

        def take() -> None:
            with suppress(OSError):  # the folder was removed
                try:
                    self.folder.lock_again()
                except BlockingIOError:  # a hvdrun resume looks at the job, and leaves it alone
                    loop.call_later(_LOCK_RETRY_SECONDS, take)

        loop.add_reader(line, note_end)

    def _get_or_put(self, name: str, create: Callable[[], bytes]) -> bytes:
        kept = self.journal.get(name)
        if kept is None:
            kept = create()
            self.journal.put(name, kept)
        return kept


class LosableJournal:
    """A journal that is given up where it cannot be written: the job goes on, and ends with its server.

    The files are removed, since another server would continue from what is no longer true.

    Args:
        journal: the one that may be given up.
        folder: of its files.
        warn: prints a sentence.
    """

    def __init__(self, journal: Journal, folder: Path, warn: Callable[[str], None]) -> None:
        self._journal = journal
        self._folder = folder
        self._warn = warn
        self._is_lost = False

    @property
    def term(self) -> int:
        """See `Journal`."""
        return self._journal.term

    def read(self) -> State | None:
        """See `Journal`."""
        return self._journal.read()

    def get(self, name: str) -> bytes | None:
        """See `Journal`."""
        return self._journal.get(name)

    def put(self, name: str, value: bytes) -> None:
        """See `Journal`."""
        if not self._is_lost:
            try:
                self._journal.put(name, value)
            except JournalUnwritableError as error:
                self._lose(error)

    async def write(self, state: State) -> None:
        """See `Journal`."""
        if not self._is_lost:
            try:
                await self._journal.write(state)
            except JournalUnwritableError as error:
                self._lose(error)

    async def close(self) -> None:
        """See `Journal`."""
        await self._journal.close()

    def _lose(self, error: JournalError) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        for path in sorted(self._folder.glob("journal.db*")):  # first the file: without its log it is out of date
            with suppress(OSError):  # a disk that is read-only now cannot be used by another server either
                path.unlink(missing_ok=True)
        self._warn(f"{error}; the job goes on, and from now on it ends with its server")


def check_journal(folder: JobFolder) -> None:
    """Look whether another server could continue a job that has no server.

    Raises:
        ResumeRefusedError: none could, or the job has a server by now.
    """
    try:
        read_journal(folder)
    except BlockingIOError as error:
        raise ResumeRefusedError(folder.job, "it runs") from error
    except (JournalError, OSError) as error:
        raise ResumeRefusedError(folder.job, str(error).rstrip(".")) from error


def read_journal(folder: JobFolder) -> State | None:
    """Where a job stands that has no server; None before it has begun.

    Raises:
        BlockingIOError: a server has just begun.
        JournalError, OSError: the journal cannot be read.
    """
    with folder.locked_again():
        journal = open_journal(folder.path / JOURNAL, lambda _: None)
        try:
            return journal.read()
        finally:
            asyncio.run(journal.close())


def find_history(folder: JobFolder) -> Any:
    """The history of a job all servers of which have ended; None where none is kept."""
    if not folder.has_journal:
        return None
    try:
        journal = open_journal(folder.path / JOURNAL, lambda _: None)
        try:
            history, _ = _read_history(journal)
        finally:
            asyncio.run(journal.close())
    except (JournalError, OSError):
        return None
    return history


def _read_history(journal: Journal) -> tuple[Any, Any]:
    kept = journal.get(_HISTORY)
    history, index = (None, None) if kept is None else pickle.loads(kept)  # noqa: S301 - this user's alone
    return history, index


def open_continuation(
    server: DetachedServer, output: OutputPrinter, warn: Callable[[str], None]
) -> Continuation | None:
    """What the job keeps; None where it can keep nothing, and ends with its first server.

    Raises:
        LaunchError: this server, which is not the first, cannot continue the job; ServerLostError: no server can.
    """
    life, journal = server.life, server.folder.path / JOURNAL
    if exists(journal / _UNKEPT):
        life.decide_end()
        raise ServerLostError(life, "it has no journal")
    try:
        continuation = Continuation(server, output, warn)
    except (JournalError, OSError) as error:
        if life.number == 1:
            warn(f"{error}; the job ends with its server")
            with suppress(OSError):  # where this fails, a next server can open no journal either
                (journal / _UNKEPT).touch(mode=0o600)
            return None
        if isinstance(error, _PERMANENT):
            life.decide_end()
            raise ServerLostError(life, str(error)) from error
        raise LaunchError(f"this server cannot continue the job: {error}.") from error
    if continuation.network is None:
        life.decide_end()  # there is nothing to continue
        # Without this the job would be started a second time, beside its workers.
        if exists(journal / _BEGUN):
            raise ServerLostError(life, "its journal was removed, or could not be written")
    return continuation
