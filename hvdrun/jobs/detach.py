"""`hvdrun --detach`: the job runs in a session of its own, and this process only waits until it has started."""

import os
import select
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from hvdrun.console.marks import read_local_clock
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError, LaunchError
from hvdrun.jobs.errors import DetachRefusedError, ResumeRefusedError, ServersLostError
from hvdrun.jobs.folder import JOURNAL, JobFolder
from hvdrun.jobs.guardian import Life, guard
from hvdrun.jobs.known import remove, remove_expired
from hvdrun.jobs.local_agents import stop_agents
from hvdrun.jobs.locations import FolderRefusedError, find_locations
from hvdrun.jobs.log import OWN_LINE, LogWriter, Piece, frame, is_own, list_logs, name_log
from hvdrun.jobs.reader import LogReader, show
from hvdrun.jobs.record import JobRecord
from hvdrun.jobs.shown import remove_unacknowledged
from hvdrun.startup.container_init import ends_with_container
from hvdrun.startup.loading import load_all
from hvdrun.startup.process import end_process
from rendezvous.bootstrap import JOB
from rendezvous.core.messages import Level
from rendezvous.core.outcome import SIGNAL_OFFSET
from rendezvous.wire.orders import OutputStream

_SCHEDULERS = {
    "SLURM_JOB_ID": "Slurm keeps the job: submit a batch script (sbatch) with the same command without --detach",
    "PBS_JOBID": "PBS keeps the job: submit a batch script (qsub) with the same command without --detach",
    "LSB_JOBID": "LSF keeps the job: submit a batch script (bsub) with the same command without --detach",
}
_NEXT = 2  # the number of a server that continues a job, whichever it is
_LOOK_SECONDS = 0.1  # between two looks whether hvdrun has said something
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_IN_A_WORKER = "hvdrun runs in a worker of another job, which ends what its workers have started"
_OF_A_CONTAINER = "hvdrun is the main program of this container, which ends with it"
_STREAMS = {1: OutputStream.STDOUT, 2: OutputStream.STDERR}


@dataclass(frozen=True, slots=True)
class DetachedServer:
    """One server of a detached job.

    folder: of the job. life: which server of it this is.
    writer: of its log. note_start: to be called when the job has started.
    """

    folder: JobFolder
    life: Life
    writer: LogWriter
    note_start: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Work:
    """What a detached job is to its guardian.

    serve: runs one server of it in a child, and returns its exit code.
    conclude: is called where no server of it could end it.
    note: is called with a sentence of hvdrun, and its level; returns the line for the log, empty where it is not shown.
    """

    serve: Callable[[DetachedServer], int]
    conclude: Callable[[JobFolder, HvdrunError], None]
    note: Callable[[str, Level], bytes]


def refuse_detachment(environment: Mapping[str, str]) -> None:
    """Refuse `--detach` for a job that a scheduler keeps, or that ends with another job or its container.

    Raises:
        DetachRefusedError: it is such a job.
    """
    for variable, reason in _SCHEDULERS.items():
        if variable in environment:
            raise DetachRefusedError(reason)
    if JOB in environment:
        raise DetachRefusedError(f"{_IN_A_WORKER}: leave it out")
    if ends_with_container():
        raise DetachRefusedError(f"{_OF_A_CONTAINER}: leave it out, and detach the container")


def refuse_resumption(job: str, environment: Mapping[str, str]) -> None:
    """Refuse to resume a job where its server would end with another job or its container.

    Raises:
        ResumeRefusedError: it would.
    """
    if JOB in environment:
        raise ResumeRefusedError(job, f"{_IN_A_WORKER}: resume it from a shell")
    if ends_with_container():
        raise ResumeRefusedError(job, f"{_OF_A_CONTAINER}: resume it from a shell there")


def detach(record: JobRecord, work: Work, environment: Mapping[str, str], patience_seconds: float) -> int:
    """Start the job in a session of its own, and return when it has started: 0, or its exit code if it has failed.

    Args:
        record: of the job.
        work: it.
        environment: of this process.
        patience_seconds: how long servers may fail to start, one after the other, before the job ends.

    Raises:
        LaunchError: there can be no folder for it.
    """
    locations = find_locations(environment)
    locations.create()
    remove_expired(locations)
    folder = JobFolder(locations.folders / record.job)
    try:
        folder.create(record)
        locations.note(record.job)
    except OSError as error:
        folder.remove()
        raise FolderRefusedError(folder.path, f"cannot be written ({error.strerror})") from error
    code = _start(folder, work, patience_seconds)
    if code and not folder.has_journal:
        remove(locations, folder)  # all of it was shown; one that was killed is resumed
    return code


def resume(folder: JobFolder, work: Work, patience_seconds: float) -> int:
    """Start another server of a job whose guardian and server have ended; return when it goes on, or its exit code.

    Args:
        folder: of the job.
        work: it.
        patience_seconds: see `detach`.
    """
    return _start(folder, work, patience_seconds, first=_NEXT)


def _start(folder: JobFolder, work: Work, patience_seconds: float, first: int = 1) -> int:
    reader = LogReader(folder.path)
    if first > 1:
        reader.skip_all()
    started, start = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(started)
        _run(folder, start, work, patience_seconds, first)
    os.close(start)
    with _passing_on(child, mask):
        return _await_start(reader, started, child)


def _run(folder: JobFolder, start: int, work: Work, patience_seconds: float, first: int) -> NoReturn:
    """Be the guardian of the job to its end, in the child; `start` is where the parent waits for the start."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)

    def serve(life: Life) -> int:
        return _serve(folder, start, work, life)

    def leave_terminal() -> None:
        """Leave the terminal to the first server, and load the code that the next ones run."""
        for descriptor in _STREAMS:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        load_all("hvdrun", "rendezvous")

    def say(sentence: str, level: Level) -> None:
        if line := work.note(sentence, level):
            _write_line(folder, line)

    code = CANNOT_LAUNCH
    try:
        _lock(folder, first)
        last = guard(serve, say, leave_terminal, first, patience_seconds)
        code = last.code
        if last.ends_job:
            if last.reason:
                work.conclude(folder, ServersLostError(last.reason, code))
            end(folder, code)
    except HvdrunError as error:
        code = _tell(error)
    except BaseException as error:  # noqa: BLE001 - the process ends before Python would print it
        traceback.print_exc()  # while the terminal is there; the log is later
        say(f"this is a bug in hvdrun, please report it: {type(error).__name__}: {error}", Level.ERROR)
    finally:
        end_process(code)


def _lock(folder: JobFolder, first: int) -> None:
    """Lock the folder for the guardian whose first server has this number.

    Raises:
        LaunchError: it cannot be written.
        ResumeRefusedError: another process has been faster.
    """
    try:
        if first == 1:
            folder.lock()
        else:
            folder.lock_again()
    except BlockingIOError as error:
        raise ResumeRefusedError(folder.job, "it runs") from error
    except OSError as error:
        raise _refuse_unwritable(folder, error) from error


def _serve(folder: JobFolder, start: int, work: Work, life: Life) -> int:
    """Be the server: run the job, or continue it from where the server before was killed; its exit code."""

    def note_start() -> None:
        nonlocal start
        if start >= 0:
            with suppress(OSError):  # nobody waits any more
                os.write(start, b"1")
            os.close(start)
            start = -1

    try:
        if life.number > 1:
            remove_unacknowledged(folder.path)
        writer = LogWriter(folder.path, _STREAMS, read_local_clock)
    except OSError as error:
        return _tell(_refuse_unwritable(folder, error))
    code = work.serve(DetachedServer(folder, life, writer, note_start))
    if life.is_alone():
        end(folder, code)
    return code


def end(folder: JobFolder, code: int) -> None:
    """Note the end of a job, remove its journal, and stop what may still run of it on this machine."""
    stop_agents(folder.job)
    folder.end(code)
    shutil.rmtree(folder.path / JOURNAL, ignore_errors=True)


def _refuse_unwritable(folder: JobFolder, error: OSError) -> LaunchError:
    return LaunchError(f"the folder {str(folder.path)!r} cannot be written: {error.strerror}")


def _tell(error: HvdrunError) -> int:
    """Print an error where no console does; its exit code."""
    with suppress(OSError):  # nobody reads it
        os.write(2, b"%b%b\n" % (OWN_LINE, str(error).encode()))
    return error.exit_code


def _write_line(folder: JobFolder, line: bytes) -> None:
    """Write a line of hvdrun into the log, which no server writes now; the last one may have been killed in a line."""
    logs = list_logs(folder.path)
    with suppress(OSError, IndexError), name_log(folder.path, logs[-1]).open("ab+") as log:  # the disk is full
        log.seek(max(0, log.tell() - 1))
        end = b"" if log.read(1) in {b"\n", b""} else b"\n"
        log.write(end + frame(OutputStream.STDERR, line, read_local_clock()))


@contextmanager
def _passing_on(child: int, mask: set[int | signal.Signals]) -> Iterator[None]:
    """Pass on what is typed to stop the job, as long as this process waits for its start."""

    def pass_on(number: int, _: object) -> None:
        os.kill(child, number)  # its pid stays its own until it is reaped

    former = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _await_start(reader: LogReader, started: int, child: int) -> int:
    """Wait until the job has started, or ended: 0, or the exit code of one that has failed."""
    relay = _Relay(reader)
    poller = select.poll()
    poller.register(started, select.POLLIN)
    while not poller.poll(_LOOK_SECONDS * 1000):
        relay.follow()
    if os.read(started, 1):
        relay.tell_own()
        return 0
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        code = SIGNAL_OFFSET - code
    if code:
        relay.tell_all()
    else:
        relay.tell_own()
    return code


class _Relay:
    """Shows what hvdrun says while the job starts; and all its output, if it fails.

    Args:
        reader: of the log.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._held: list[Piece] = []  # from the first output of a worker on, in order

    def follow(self) -> None:
        """Show what hvdrun has said before any worker has written."""
        for piece in self._reader.read():
            if self._held or not is_own(piece):
                self._held.append(piece)
            else:
                self._show(piece)

    def tell_own(self) -> None:
        """Show the rest of what hvdrun has said."""
        self.follow()
        for piece in filter(is_own, self._held):
            self._show(piece)

    def tell_all(self) -> None:
        """Show the rest of all output."""
        self.follow()
        for piece in self._held:
            self._show(piece)

    def _show(self, piece: Piece) -> None:
        with suppress(OSError):  # nobody reads it; the job goes on
            show(piece)
