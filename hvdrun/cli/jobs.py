"""The command lines of `hvdrun ps`, `attach`, `logs`, `wait`, `stop`, `resume` and `rm`."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from hvdrun.cli.job_table import describe, make_table, tell_time
from hvdrun.cli.messages import INTERRUPTED, OUTPUT_CLOSED, discard_stdout
from hvdrun.errors import OutputLostError, UsageError
from hvdrun.jobs.errors import (
    JobAttachedError,
    JobElsewhereError,
    JobFolderLostError,
    JobNotFoundError,
    JobNotHereError,
    JobNotRespondingError,
    JobRunningError,
    LauncherLostError,
    OtherContainerError,
    ResumeRefusedError,
)
from hvdrun.jobs.folder import JobFolder
from hvdrun.jobs.known import ANSWER_SECONDS, LAST, JobState, KnownJob, choose, find_jobs, look_at
from hvdrun.jobs.known import remove as remove_folder
from hvdrun.jobs.local_agents import find_agents
from hvdrun.jobs.locations import find_locations
from hvdrun.jobs.questions import find_launcher
from hvdrun.jobs.reader import LogReader, RankFilter, end_line, show
from hvdrun.options.option import RawValues
from hvdrun.options.programs import JOB_PROGRAMS, RANK
from hvdrun.processes import processes
from hvdrun.version import __version__

Say = Callable[[str], None]  # prints a sentence on standard error
Page = tuple[str, int]  # for standard output, and the exit code

_LISTED_SECONDS = 24 * 3600.0  # how long ago a job may have ended that is listed without --all
_LOOK_SECONDS = 0.2  # between two looks whether a job has ended
_SHOWN_BYTES = 64 * 1024  # of the output before `hvdrun attach`


def run(name: str, words: Sequence[str], say: Say) -> Page:
    """Run one of these programs.

    Raises:
        HvdrunError: the command line is wrong, or there is no such job.
    """
    program = JOB_PROGRAMS[name]
    given = program.parse(words)
    if "help" in given:
        from hvdrun.options.pages import render_program_help  # noqa: PLC0415 - few ask for it

        return render_program_help(program), 0
    try:
        return _PROGRAMS[name](given, say)
    except BrokenPipeError:  # as with | head
        discard_stdout()
        return "", OUTPUT_CLOSED


def list_all(given: Mapping[str, RawValues], _: Say) -> Page:
    """`hvdrun ps`."""
    now = time.time()
    jobs = [job for job in find_jobs() if "all" in given or job.ended is None or now - job.ended < _LISTED_SECONDS]
    if "json" in given:
        return json.dumps({"version": 1, "jobs": list(map(describe, jobs))}, indent=1), 0
    return make_table(jobs), 0


def wait(given: Mapping[str, RawValues], say: Say) -> Page:
    """`hvdrun wait`."""
    job = find_detached(given, "wait", "exit code")
    with answer_interrupt(_leave(job, say)) as interrupt:
        while job.state is JobState.RUNNING and not interrupt:
            time.sleep(_LOOK_SECONDS)
            job = look_again(job)
    return "", INTERRUPTED if interrupt else find_exit_code(job)


def stop(given: Mapping[str, RawValues], say: Say) -> Page:
    """`hvdrun stop`."""
    if "here" in given:
        return _stop_here(str(given.get("job", "")), say)
    return _stop_job(given, say)


def _stop_job(given: Mapping[str, RawValues], say: Say) -> Page:
    jobs = find_jobs()
    if given.get("job") == LAST:  # the one that hvdrun logs and the others mean
        jobs = [job for job in jobs if job.folder is not None] or jobs
    elif not given.get("job"):
        jobs = _find_stoppable(jobs)
    job = _find(given, "stop", jobs)
    if job.state is JobState.LOST:
        find_exit_code(job)
    if job.state is JobState.ENDED:
        say(f"the job {job.name} has ended already, with exit code {job.exit_code}")
        return "", 0
    if job.pid is None:
        raise JobNotRespondingError(job.name, ANSWER_SECONDS)
    if not job.pid:
        raise OtherContainerError(job.name)
    launcher = processes.look(job.pid)
    now = find_launcher(job.name) if job.folder is None else job.folder.find_launcher()
    if launcher is None or now != job.pid:  # it has ended meanwhile, and another one may have its pid
        return "", 0
    for number in (signal.SIGTERM, signal.SIGCONT):  # perhaps Ctrl-Z has stopped it
        processes.kill(launcher, number)
    say(f"stopping the job {job.name}; hvdrun stop {job.name} again ends it at once")
    with answer_interrupt(lambda: say(f"the job {job.name} still ends")) as interrupt:
        while not interrupt and processes.is_running(launcher):
            time.sleep(_LOOK_SECONDS)
    return "", INTERRUPTED if interrupt else 0


def _find_stoppable(jobs: Sequence[KnownJob]) -> list[KnownJob]:
    """The jobs that may be stopped without their name: not another terminal's.

    Raises:
        UsageError: only such jobs run.
    """
    running = [job for job in jobs if job.state is JobState.RUNNING]
    detached = [job for job in running if job.record.is_detached]
    if running and not detached:
        last = running[-1]
        raise UsageError(f"no detached job runs: name another terminal's, as in hvdrun stop {last.name}.")
    return detached


def _stop_here(asked: str, say: Say) -> Page:
    """`hvdrun stop --here`."""
    agents = [agent for agent in find_agents() if agent.job.startswith(asked)]
    names = sorted({agent.job for agent in agents})
    if not names:
        raise JobNotHereError(asked)
    if len(names) > 1:
        raise UsageError(f"several jobs run on this machine ({', '.join(names)}): name one.")
    for agent in agents:
        agent.stop()
    say(f"the job {names[0]} gets a stop notice here: without a launcher it has a minute, or --grace on a repeat")
    with answer_interrupt(lambda: say(f"the job {names[0]} still ends on this machine")) as interrupt:
        while not interrupt and any(agent.is_running for agent in agents):
            time.sleep(_LOOK_SECONDS)
    return "", INTERRUPTED if interrupt else 0


def print_log(given: Mapping[str, RawValues], say: Say) -> Page:
    """`hvdrun logs`."""
    job = find_detached(given, "logs", "output")
    chosen = None
    if "rank" in given:
        if not job.record.marks_ranks:
            raise UsageError(
                f"the job {job.name} was started with --no-prefix, and no line tells its rank: leave --rank out."
            )
        rank, most = int(str(RANK.read(str(given["rank"]), RANK.flags[0]))), job.record.max_size
        if most is not None and rank >= most:
            ranks = "its only rank is 0" if most == 1 else f"its ranks are 0 to {most - 1}"
            raise UsageError(f"the job {job.name} has no rank {rank}: {ranks}.")
        chosen = RankFilter(rank)
    with closing(LogReader(job.path)) as reader:
        if "follow" not in given:
            _show_all(reader, chosen, (), is_over=job.state is not JobState.RUNNING)
            return "", 0
        with answer_interrupt(_leave(job, say, reader)) as interrupt:
            job = _follow(job, reader, interrupt, chosen)
    if interrupt:
        return "", INTERRUPTED
    if job.state is JobState.LOST:
        say(str(LauncherLostError(job.name, _describe_end(job))))
    return "", 0


def attach(given: Mapping[str, RawValues], say: Say) -> Page:
    """`hvdrun attach`."""
    job = find_detached(given, "attach", "output")
    with closing(LogReader(job.path)) as reader, answer_interrupt(_leave(job, say, reader)) as interrupt:
        if reader.skip_to(_SHOWN_BYTES):
            say(f"hvdrun logs {job.name} has the output before this")
        job = _follow(job, reader, interrupt)
    return "", INTERRUPTED if interrupt else find_exit_code(job)


def remove(given: Mapping[str, RawValues], _: Say) -> Page:
    """`hvdrun rm`."""
    if "job" not in given:
        raise UsageError("JOB, the job to remove, is missing: hvdrun ps --all lists the jobs.")
    job = find_detached(given, "rm", "output")
    if job.state is JobState.RUNNING:
        raise JobRunningError(job.name)
    if any(agent.job == job.name for agent in find_agents()):
        raise JobRunningError(job.name, "hvdrun stop --here")
    if job.folder is None:
        return "", 0
    if job.state is JobState.LOST and "force" not in given:
        from hvdrun.cli.removal import refuse_needed  # noqa: PLC0415 - few jobs are lost

        refuse_needed(job.folder)
    remove_folder(find_locations(os.environ), job.folder)
    return "", 0


def resume(given: Mapping[str, RawValues], say: Say) -> Page:
    """`hvdrun resume`."""
    if "job" not in given:
        raise UsageError("JOB, the job to resume, is missing: hvdrun ps lists the jobs.")
    job = find_detached(given, "resume", "journal")
    if job.state is JobState.RUNNING:
        raise ResumeRefusedError(job.name, "it runs")
    if job.state is JobState.ENDED:
        raise ResumeRefusedError(job.name, f"it has ended, with exit code {job.exit_code}")
    version, kept = _read_launch(job)
    if version != __version__:
        way = "resume it with that version, or stop what runs of it, and start it again with its --checkpoint"
        raise ResumeRefusedError(job.name, f"it was started by hvdrun {version}, and this is {__version__}: {way}")
    from hvdrun.cli.run import resume_detached  # noqa: PLC0415 - few jobs are resumed
    from hvdrun.jobs.continuation import check_journal  # noqa: PLC0415 - few jobs are resumed

    check_journal(JobFolder(job.path))
    code = resume_detached(JobFolder(job.path), kept)
    if code == 0:
        say(f"the job {job.name} has a server again: hvdrun logs {job.name} tells whether its workers go on")
    return "", code


def _read_launch(job: KnownJob) -> tuple[str, bytes]:
    """The version of hvdrun that has started the job, and what another server needs.

    Raises:
        ResumeRefusedError: there is none of that.
    """
    folder = JobFolder(job.path)
    try:
        launch = folder.read_launch()
    except ValueError as error:
        raise ResumeRefusedError(job.name, f"{str(folder.launch_path)!r} is damaged") from error
    if launch is None or not folder.has_journal:
        raise ResumeRefusedError(job.name, "it has no journal")
    return launch


def _follow(job: KnownJob, reader: LogReader, interrupt: list[int], chosen: RankFilter | None = None) -> KnownJob:
    """Show what comes until the job has ended, or Ctrl-C is pressed; how the job is then."""
    while not interrupt:
        is_over = job.state is not JobState.RUNNING
        _show_all(reader, chosen, interrupt, is_over=is_over)
        if is_over:  # before the last look: all output is there
            break
        time.sleep(_LOOK_SECONDS)
        job = look_again(job)
    if job.state is JobState.LOST:  # a sentence follows
        end_line(reader.unended)
    return job


def _show_all(reader: LogReader, chosen: RankFilter | None, interrupt: Sequence[int], *, is_over: bool) -> None:
    """Show what has come since the last call, unless Ctrl-C is pressed: it may be much."""
    for piece in reader.read(is_over=is_over):
        if interrupt:
            return
        for each in (piece,) if chosen is None else chosen.take(piece):
            try:
                show(each)
                reader.unended = None if each.data.endswith(b"\n") else each.stream
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputLostError(error.strerror or str(error)) from error


_PROGRAMS: Mapping[str, Callable[[Mapping[str, RawValues], Say], Page]] = {
    "ps": list_all,
    "attach": attach,
    "logs": print_log,
    "wait": wait,
    "stop": stop,
    "resume": resume,
    "rm": remove,
}


def find_detached(given: Mapping[str, RawValues], name: str, thing: str) -> KnownJob:
    """The detached job of this machine that is meant.

    Args:
        given: the values of the command line.
        name: of the program.
        thing: what a job has only if it is detached.

    Raises:
        HvdrunError: there is none.
    """
    jobs = find_jobs()
    asked = str(given.get("job", ""))
    detached = [job for job in jobs if job.folder is not None or job.state is JobState.ELSEWHERE]
    if asked and not any(job.name.startswith(asked) for job in detached) and asked != LAST:
        detached = jobs
    job = _find(given, name, detached)
    if job.folder is None:
        if job.record.is_detached:
            raise JobFolderLostError(job.name, job.record.folder)
        raise JobAttachedError(job.name, thing)
    return job


def _find(given: Mapping[str, RawValues], name: str, jobs: Sequence[KnownJob]) -> KnownJob:
    job = choose(str(given.get("job", "")), jobs, f"hvdrun {name}", "detached job")
    if job.state is JobState.ELSEWHERE:
        raise JobElsewhereError(job.name, job.record.machine, f"hvdrun {name} {job.name}")
    return job


def look_again(job: KnownJob) -> KnownJob:
    """How a detached job is now.

    Raises:
        JobNotFoundError: it was removed, or its folder is not on this machine's disks.
    """
    if job.folder is None or (now := look_at(job.folder)) is None:
        raise JobNotFoundError(f"job {job.name}")
    return now


def find_exit_code(job: KnownJob) -> int:
    """The exit code of a job that has ended.

    Raises:
        LauncherLostError: nobody knows it.
    """
    if job.exit_code is not None:
        return job.exit_code
    raise LauncherLostError(job.name, _describe_end(job))


def _describe_end(job: KnownJob) -> str:
    """What is known of the end of a lost job, half a sentence."""
    how = "was killed"
    if job.record.has_lost_its_machine:
        how = "ended with its machine, which has been started again"
    return f"{how}; it wrote last at {tell_time(job.ended or 0)}"


@contextmanager
def answer_interrupt(tell: Callable[[], None]) -> Iterator[list[int]]:
    """Ctrl-C leaves a job that runs, and is told; what is yielded is empty until then."""
    pressed: list[int] = []

    def note(number: int, _: object) -> None:
        if not pressed:
            tell()
        pressed.append(number)

    former = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, former)


def _leave(job: KnownJob, say: Say, reader: LogReader | None = None) -> Callable[[], None]:
    def leave() -> None:
        end_line(None if reader is None else reader.unended)
        if look_again(job).state is JobState.RUNNING:
            say(f"the job {job.name} goes on: hvdrun stop {job.name} stops it")

    return leave
