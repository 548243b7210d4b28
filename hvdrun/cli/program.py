"""The command line, from its words to the exit code.

What is wrong with a request is said here in one sentence before anything starts. Everything heavier than click is
imported only for a job that will run: --help and a mistyped flag answer at once.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hvdrun.cli.parsing import COMPLETION, answer, answer_shell, parse
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError, UsageError
from hvdrun.hosts.preparation import prepare, take_in
from hvdrun.options.flags import find_command
from hvdrun.options.request import complete, make_job
from hvdrun.options.table import BY_FLAG
from hvdrun.spec.command import Surroundings, reads_program
from hvdrun.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from hvdrun.console import Console

INTERRUPTED = 130
LAST_WORDS_SECONDS = 5.0  # for what a launch that raised has left to be written

Launch = Callable[[JobSpec, "Console"], int]  # runs a job and returns its exit code


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run hvdrun and return its exit code.

    Args:
        arguments: the words after the program's name; those of this process unless given.
        launch: what runs the job; `hvdrun.job.launch` unless given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = words[words[:1] == ["horovodrun"] :]
    with_time = asks_for("marks_times", options)
    try:
        open_missing_descriptors()
        if (instruction := os.environ.get(COMPLETION)) is not None and arguments is None:
            return answer_shell(instruction)
        if words[:1] in (["agent"], ["token"]):
            return run_own_program(words[0], words[1:])
        return run(read_spec(words) if options == words else read_horovodrun(options), launch)
    except click.exceptions.Exit as answered:
        return answered.exit_code
    except HvdrunError as error:
        print_error(*error.lines, with_time=with_time)
        return error.exit_code
    except KeyboardInterrupt:
        return end_by_interrupt()
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a fault of ours: told, not thrown at the user
        with_traceback = words[:1] == ["agent"] or asks_for("verbose", options)  # hvdrun agent has no -v
        return report_internal_error(error, with_traceback=with_traceback, with_time=with_time)


def run_own_program(name: str, words: Sequence[str]) -> int:
    """Run `hvdrun agent` or `hvdrun token`; its exit code.

    Raises:
        HvdrunError: it is used wrongly, or cannot do its part.
        click.exceptions.Exit: it has printed what was asked for.
    """
    from hvdrun.options.programs import read_agent, read_token  # noqa: PLC0415 - a job does without them

    if name == "token":
        values = read_token(words)
        from hvdrun.joining.keys import make_token  # noqa: PLC0415 - a wrong command line is answered at once

        answer(make_token(values))
    values = read_agent(words)
    from hvdrun.joining.agent import run_agent  # noqa: PLC0415 - the same

    return run_agent(values, lambda sentence: print_error(sentence, with_time=False))


def end_by_interrupt() -> int:
    """Die of SIGINT, so that a shell ends its loop as well; the exit code where that cannot be, as in process 1."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    return INTERRUPTED


def read_spec(words: Sequence[str]) -> JobSpec:
    """Turn the command line, and the environment variables that stand for options, into a job.

    Raises:
        HvdrunError: it is wrong, or names what does not exist.
        click.exceptions.Exit: --help or --version has been answered.
    """
    find_command(words)
    typed, command = parse(words)
    return make_job(typed, command, os.environ, lambda values: complete(words, values))


def read_horovodrun(words: Sequence[str]) -> JobSpec:
    """Turn horovodrun's command line into a job.

    Raises:
        HvdrunError: it is wrong, or names what does not exist.
        click.exceptions.Exit: --help, --version or --check-build has been answered.
    """
    from hvdrun.cli.horovodrun import read_request  # noqa: PLC0415 - hvdrun itself does without it

    asked = read_request(words)
    return answer(asked) if isinstance(asked, str) else asked


def run(spec: JobSpec, launch: Launch | None) -> int:
    """Run a job that is right as far as can be seen from here; its exit code.

    Raises:
        HvdrunError: it cannot be launched.
        click.exceptions.Exit: --dry-run has been answered.
    """
    spec, details = prepare(spec, Surroundings(spec.workers.directory, os.environ.get("PATH"), sys.executable))
    from hvdrun.console import Console, Marks  # noqa: PLC0415 - only a job that will run pays for it

    display, size, elasticity = spec.display, spec.workers.size, spec.limits.elasticity
    hosts = len(spec.workers.hosts) > 1 or spec.discovers
    marks = Marks(ranks=display.marks_ranks, hosts=hosts, times=display.marks_times, horovod=display.marks_as_horovod)
    console = Console(verbose=display.verbose, marks=marks)
    try:
        for remark in (*display.remarks, *explain_stdin(spec)):
            console.notice(remark)
        for detail in details:
            console.verbose(detail)
        if display.dry_run:
            answer(describe(spec))
        if display.output_folder is not None:
            most = size if elasticity is None else max(size, elasticity.max_size or 0)
            console.keep_output(display.output_folder, most, size)
        return (launch or load_launch())(spec, console)
    finally:
        console.end(LAST_WORDS_SECONDS)


def explain_stdin(spec: JobSpec) -> tuple[str, ...]:
    """What to say where Python would read a program that it is not given."""
    command = spec.workers.command
    if spec.workers.stdin_rank is not None or not reads_program(command):
        return ()
    remedy = "name a script, or let one worker read it with --stdin 0"
    return (f"{command[0]} reads its program from standard input, which the workers do not get: {remedy}.",)


def describe(spec: JobSpec) -> str:
    """What would be started, for --dry-run; a discovery script is asked once.

    Raises:
        HvdrunError: it could not be started.
    """
    from hvdrun.cli.plan import make_plan, render_plan  # noqa: PLC0415 - brings what an agent needs

    if spec.remote.joining is not None:
        from hvdrun.joining.launcher import describe_joining  # noqa: PLC0415 - few jobs wait for agents

        return describe_joining(spec, spec.remote.joining)
    if spec.discovers:
        from hvdrun.hosts.discovery_script import find_now  # noqa: PLC0415 - few jobs have a script

        spec = take_in(
            spec, find_now(spec), Surroundings(spec.workers.directory, os.environ.get("PATH"), sys.executable)
        )
    return render_plan(make_plan(spec, os.environb))


def load_launch() -> Launch:
    """What runs jobs."""
    from hvdrun.job import launch  # noqa: PLC0415 - brings grpc and cryptography

    return launch


def print_error(sentence: str, *details: str, with_time: bool) -> None:
    """Say on stderr what is wrong: a line, and one more for each detail."""
    head, *rest = (" ".join(text.splitlines()) for text in (sentence, *details))
    lines = [f"hvdrun: {head}", *(f"  {text}" for text in rest)]
    if with_time:
        from hvdrun.console.marks import render_time  # noqa: PLC0415 - few ask for it

        lines = [f"{render_time(datetime.now().astimezone())}{line}" for line in lines]
    if sys.stderr is not None:  # None when hvdrun was started with it closed
        with suppress(OSError):
            print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201 - the command line prints


def asks_for(dest: str, words: Sequence[str]) -> bool:
    """Whether a switch is among the options; said of a command line that may not have been understood."""
    with suppress(UsageError):
        words = words[: find_command(words)]
    return any(word in BY_FLAG and BY_FLAG[word].dest == dest for word in words)


def report_internal_error(error: BaseException, *, with_traceback: bool, with_time: bool) -> int:
    """Say that hvdrun itself is at fault; the exit code."""
    if with_traceback and sys.stderr is not None:
        with suppress(OSError):
            traceback.print_exception(error)
    remedy = (
        "please report it with this traceback" if with_traceback else "please run it with -v and report what it says"
    )
    print_error(f"this is a fault of hvdrun's own, {remedy}: {type(error).__name__}: {error}", with_time=with_time)
    return CANNOT_LAUNCH


def open_missing_descriptors() -> None:
    """Fill descriptors 0 to 2 where they were closed, or the next socket would become the job's standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
