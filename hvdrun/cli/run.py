"""Runs a job that the command line asks for: on this terminal, or in a session of its own."""

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hvdrun.cli.messages import BUG, INTERRUPTED, OUTPUT_CLOSED, print_error, print_record, print_text, report
from hvdrun.errors import HvdrunError
from hvdrun.hosts.preparation import add_hosts, prepare
from hvdrun.processes.processes import name_job
from hvdrun.spec.command import LookupContext
from hvdrun.spec.jobspec import Display, JobSpec
from hvdrun.spec.log_format import LogFileError, LogFormat
from hvdrun.spec.redaction import redact_command
from hvdrun.startup.paths import exists
from hvdrun.version import __version__
from rendezvous.core.messages import Level

if TYPE_CHECKING:
    from hvdrun.accounts.history import History
    from hvdrun.console import Console
    from hvdrun.jobs.continuation import Continuation
    from hvdrun.jobs.detach import DetachedServer, Work
    from hvdrun.jobs.folder import JobFolder
    from hvdrun.jobs.start import StartWatch


LAST_WORDS_SECONDS = 5.0  # to write the output that is left after a launch that raised
_SSH_AGENT = b"SSH_AUTH_SOCK"

Launch = Callable[[JobSpec, "Console"], int]  # runs a job and returns its exit code


def run(spec: JobSpec, launch: Launch | None) -> int:
    """Run a job and return its exit code; the job has passed all checks that need no other host.

    Raises:
        HvdrunError: it cannot be launched.
    """
    hosts, name = len(spec.workers.hosts) > 1 or spec.discovers, name_job(os.environ)
    with _keeping_refusal(spec, name, is_wanted=launch is not None):
        with _logging_refusal(spec.display, name):
            spec, details = prepare(spec, LookupContext(spec.workers.directory, os.environ.get("PATH"), sys.executable))
        prepared = Prepared(spec, name, details, has_several_hosts=hosts)
        if not spec.display.detach:
            return run_prepared(prepared, launch)
        with _logging_refusal(spec.display, name):
            return run_detached(prepared, launch)


@contextmanager
def _logging_refusal(display: Display, name: str) -> Iterator[None]:
    """Give an error that no console reports the form of what hvdrun says, and write it into the file of --log-file."""
    try:
        yield
    except HvdrunError as error:
        if not display.dry_run and (record := _log(display, name, *error.lines)) is not None:
            error.is_told = print_record(record)
        raise


@contextmanager
def _keeping_refusal(
    spec: JobSpec,
    name: str,
    ends: type[HvdrunError] = HvdrunError,
    ago_seconds: float = 0.0,
    *,
    is_wanted: bool = False,
) -> Iterator[None]:
    """Write the file of --outcome where the job is refused: a program would take that of an earlier job for its own.

    Args:
        spec: the job.
        name: its name.
        ends: the errors that end the job.
        ago_seconds: how long ago it began.
        is_wanted: the error is to have its report, also without a file.
    """
    try:
        yield
    except ends as error:
        if error.report or spec.display.dry_run or not (is_wanted or spec.display.outcome_file):
            raise
        _write_outcome(spec, name, error, ago_seconds)
        raise


def _write_outcome(
    spec: JobSpec, name: str, error: HvdrunError, ago_seconds: float, history: "History | None" = None
) -> None:
    """Write the file of --outcome for a job that this error has ended; print a sentence where it cannot be written."""
    from hvdrun.accounts.history import History  # noqa: PLC0415 - a job that starts has its own
    from hvdrun.accounts.outcome_file import JobFacts, OutcomeFile, OutcomeFileError  # noqa: PLC0415 - few jobs are refused
    from hvdrun.console.marks import read_local_clock  # noqa: PLC0415 - only a job that will run pays for it

    tell = partial(print_error, with_time=spec.display.marks_times)
    facts = JobFacts(name, redact_command(spec.workers.command), spec.usable_hosts)
    path = None if isinstance(error, OutcomeFileError) else spec.display.outcome_file
    try:
        file = OutcomeFile(path, facts, history or History(), read_local_clock, tell, ago_seconds=ago_seconds)
    except OutcomeFileError as failure:
        tell(str(failure))
    else:
        file.write(error)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that is ready to be launched.

    name: of the job. details: the sentences that -v prints about it.
    has_several_hosts: each line of its output names the host.
    """

    spec: JobSpec
    name: str
    details: tuple[str, ...]
    has_several_hosts: bool


def run_detached(prepared: Prepared, launch: Launch | None) -> int:
    """Start a job in a session of its own, print its name when it has started, and return the exit code.

    Raises:
        HvdrunError: it cannot be launched, before it has an output of its own.
    """
    from hvdrun.jobs.detach import detach, refuse_detachment  # noqa: PLC0415 - few jobs are detached
    from hvdrun.jobs.logout import find_kill  # noqa: PLC0415 - few jobs are detached
    from hvdrun.jobs.record import JobRecord  # noqa: PLC0415 - few jobs are detached

    spec, display = prepared.spec, prepared.spec.display
    refuse_detachment(os.environ)
    if (warning := find_kill()) is not None:
        print_error(warning, with_time=display.marks_times)
    if display.dry_run:
        return run_prepared(prepared, launch)
    if display.outcome_file is not None:
        from hvdrun.accounts.outcome_file import clear  # noqa: PLC0415 - few jobs have one

        clear(display.outcome_file)  # before any server: one may be killed before it has come to that

    patience_seconds = spec.limits.effective_server_timeout_seconds
    code = detach(JobRecord.of(prepared.name, spec), _make_work(prepared, launch), os.environ, patience_seconds)
    if code == 0:
        code = _tell_name(prepared.name)
    return code


def _tell_name(name: str) -> int:
    """Print the name of a job that has started, and return the exit code; where that fails, say that the job goes on.

    Raises:
        OutputLostError: it cannot be written.
    """
    hint = f"the job goes on: hvdrun attach {name} | logs -f {name} | stop {name}"
    is_told = sys.stderr is not None and sys.stderr.isatty()
    if is_told:
        print_error(hint, with_time=False)
    code = OUTPUT_CLOSED  # until it is printed
    try:
        code = print_text(name)
    finally:
        if code and not is_told:
            print_error(hint, with_time=False)
    return code


def resume_detached(folder: "JobFolder", kept: bytes) -> int:
    """Start another server of a detached job, and return its exit code; 0 as soon as it goes on.

    Args:
        folder: of the job.
        kept: what the first server has kept for it.
    """
    from hvdrun.jobs.detach import refuse_resumption, resume  # noqa: PLC0415 - few jobs are resumed

    refuse_resumption(folder.job, os.environ)
    prepared, environment = pickle.loads(kept)  # noqa: S301 - the file is this user's alone
    # The ssh agent of the login that has started the job may have ended.
    present = {name: value for name, value in os.environb.items() if name == _SSH_AGENT}
    os.environb.clear()
    os.environb.update({**environment, **present})
    patience_seconds = prepared.spec.limits.effective_server_timeout_seconds
    return resume(folder, _make_work(prepared, None), patience_seconds)


def _make_work(prepared: Prepared, launch: Launch | None) -> "Work":
    """The job, as its guardian sees it."""
    from hvdrun.jobs.detach import Work  # noqa: PLC0415 - few jobs are detached

    return Work(partial(_serve, prepared, launch), partial(_conclude, prepared), partial(_note, prepared))


def _note(prepared: Prepared, sentence: str, level: Level) -> bytes:
    """Write a sentence about the job, which has no server now, into the file of --log-file; the line for its log."""
    from hvdrun.console.marks import read_local_clock, render_time  # noqa: PLC0415 - few jobs have such a time

    display = prepared.spec.display
    if not level.reaches(display.least_level):
        return b""
    record = _log(display, prepared.name, sentence, level=level)
    if record is None:
        time = render_time(read_local_clock()) if display.marks_times else ""
        record = f"{time}hvdrun: {sentence}\n"
    return record.encode()


def _log(display: Display, name: str, sentence: str, *details: str, level: Level = Level.ERROR) -> str | None:
    """Write what no console prints into the file of --log-file; without one, the record in place of the sentence."""
    if display.log_file is None and display.log_format is LogFormat.TEXT:
        return None
    from hvdrun.console.log import Log  # noqa: PLC0415 - a job that will run has its console
    from hvdrun.console.marks import read_local_clock  # noqa: PLC0415 - few jobs are refused

    log = Log(name, display.log_format, read_local_clock)
    if display.log_file is not None:
        with suppress(LogFileError):  # a console has said so, or says it
            log.open(display.log_file)
    record = log.note(level, None, sentence, *details)
    log.end(LAST_WORDS_SECONDS)
    if display.log_file is not None:
        return None
    return record


def _conclude(prepared: Prepared, folder: "JobFolder", error: HvdrunError) -> None:
    """Write the file of --outcome for a job whose servers could not do that."""
    path = prepared.spec.display.outcome_file
    if path is None or exists(path):
        return
    from hvdrun.jobs.continuation import find_history  # noqa: PLC0415 - few jobs end so

    _write_outcome(prepared.spec, prepared.name, error, folder.age_seconds, find_history(folder))


def _serve(prepared: Prepared, launch: Launch | None, server: "DetachedServer") -> int:
    """Run a detached job, as one of its servers."""
    display = prepared.spec.display
    ends: type[HvdrunError] = HvdrunError
    if server.life.number > 1:
        from hvdrun.jobs.continuation import ServerLostError  # noqa: PLC0415 - few jobs have such a server

        ends = ServerLostError
    try:
        if server.folder.read_launch() is None:
            server.folder.write_launch(__version__, pickle.dumps((prepared, dict(os.environb))))
        with _keeping_refusal(prepared.spec, prepared.name, ends, server.folder.age_seconds):
            return run_prepared(prepared, launch, server)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - an error of hvdrun is reported as one
        return report(error, with_traceback=display.least_level is Level.DEBUG, with_time=display.marks_times)


def run_prepared(prepared: Prepared, launch: Launch | None, server: "DetachedServer | None" = None) -> int:
    """Run a job and return its exit code.

    Args:
        prepared: the job.
        launch: runs it; `hvdrun.job.launch` unless given.
        server: which server of the job this is, if that is detached.

    Raises:
        HvdrunError: it cannot be launched.
    """
    from hvdrun.console import Console, Marks  # noqa: PLC0415 - only a job that will run pays for it

    spec, hosts = prepared.spec, prepared.has_several_hosts
    display, size, elasticity = spec.display, spec.workers.size, spec.limits.elasticity
    marks = Marks(ranks=display.marks_ranks, hosts=hosts, times=display.marks_times, horovod=display.marks_as_horovod)
    console = Console(
        level=display.least_level,
        marks=marks,
        job=prepared.name,
        folds=size > 1 or elasticity is not None,
        log_format=display.log_format,
        writer=None if server is None else server.writer,
    )
    continuation: Continuation | None = None
    try:
        is_next = server is not None and server.life.number > 1
        if display.log_file is not None and not display.dry_run:
            _keep_log(console, display.log_file, is_next=is_next)
        for remark in () if is_next else display.remarks:
            console.notice(remark)
        for detail in prepared.details:
            console.verbose(detail)
        if display.dry_run:
            return print_text(describe(spec))
        if server is not None:
            from hvdrun.jobs.continuation import open_continuation  # noqa: PLC0415 - few jobs are detached

            warn = partial(console.notice, level=Level.WARNING)
            continuation = open_continuation(server, console.output, warn)
        if display.output_folder is not None:
            _keep_output(console, display.output_folder, spec, continuation)
        if launch is None:
            from hvdrun import job  # noqa: PLC0415 - brings grpc and cryptography

            launch = partial(job.launch, start=_watch_start(spec, server), continuation=continuation)
        return launch(spec, console)
    except HvdrunError as error:
        error.is_told = console.report(*error.lines)
        raise
    except Exception as error:
        console.report(f"{BUG}: {type(error).__name__}: {error}", *traceback.format_exc().splitlines())
        raise
    finally:
        console.end(LAST_WORDS_SECONDS)


def describe(spec: JobSpec) -> str:
    """The text of --dry-run. A discovery script runs once.

    Raises:
        HvdrunError: the job could not be started.
    """
    from hvdrun.cli.plan import make_plan, render_plan  # noqa: PLC0415 - brings what an agent needs

    if spec.remote.joining is not None:
        from hvdrun.joining.launcher import describe_joining  # noqa: PLC0415 - few jobs wait for agents

        return describe_joining(spec, spec.remote.joining)
    if spec.discovers:
        from hvdrun.hosts.discovery_script import find_now  # noqa: PLC0415 - few jobs have a script

        spec = add_hosts(
            spec, find_now(spec), LookupContext(spec.workers.directory, os.environ.get("PATH"), sys.executable)
        )
    return render_plan(make_plan(spec, os.environb))


def _keep_log(console: "Console", path: Path, *, is_next: bool) -> None:
    """Write what hvdrun says into a file; another server of a job that trains goes on without one."""
    try:
        console.keep_log(path)
    except LogFileError as error:
        if not is_next:
            raise
        lacks = "cannot be written, and lacks what hvdrun says from now on"
        console.notice(f"{str(path)!r} of --log-file {lacks}: {error.reason}.", Level.WARNING)


def _keep_output(console: "Console", folder: Path, spec: JobSpec, continuation: "Continuation | None") -> None:
    """Write the workers' output into files, or go on with those of a former server of the job."""
    most = size = spec.workers.size
    if spec.limits.elasticity is not None:
        most = max(size, spec.limits.elasticity.max_size or 0)
    index = None if continuation is None else continuation.read_history()[1]
    console.keep_output(folder, most, size, index)


def _watch_start(spec: JobSpec, server: "DetachedServer | None") -> "StartWatch | None":
    """Who waits for the start of a detached job, as the process that has started it does."""
    if server is None:
        return None
    from hvdrun.jobs.start import StartWatch, expects_init  # noqa: PLC0415 - few jobs are detached

    joins = expects_init(spec.workers.command, spec.workers.directory)
    patience_seconds = spec.limits.start_timeout_seconds
    return StartWatch(server.note_start, expects_init=joins, patience_seconds=patience_seconds)
