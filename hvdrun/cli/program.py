"""The command line: the only room that knows click, prints and exits.

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
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from hvdrun.errors import CANNOT_LAUNCH, HvdrunError, OutputLostError, UsageError
from hvdrun.hosts.preparation import prepare, take_in
from hvdrun.options.click_options import make_click_options
from hvdrun.options.flags import find_command
from hvdrun.options.option import Given
from hvdrun.options.pages import describe_options
from hvdrun.options.request import complete, make_job
from hvdrun.options.table import BY_FLAG, OPTIONS
from hvdrun.spec.command import Surroundings, reads_program
from hvdrun.spec.jobspec import JobSpec
from hvdrun.version import __version__

if TYPE_CHECKING:
    from hvdrun.console import Console

INTERRUPTED = 130
LAST_WORDS_SECONDS = 5.0  # for what a launch that raised has left to be written
OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as a shell tells of any program whose reader has gone

Launch = Callable[[JobSpec, "Console"], int]  # runs a job and returns its exit code


class Hvdrun(click.Command):
    """The command line as click sees it, with a help page of our own."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the page of --help: options in groups, examples, exit codes."""
        formatter.write_usage("hvdrun", "[options] COMMAND [arguments]")
        formatter.write_paragraph()
        formatter.write_text(ABOUT)
        for heading, rows in (*describe_options(), ("Examples", EXAMPLES), ("Exit codes", EXIT_CODES)):
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=34)


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
        return report_internal_error(error, with_traceback=asks_for("verbose", options), with_time=with_time)


def run_own_program(name: str, words: Sequence[str]) -> int:
    """Run `hvdrun agent` or `hvdrun token`; its exit code.

    Raises:
        HvdrunError: it is used wrongly, or cannot do its part.
        click.exceptions.Exit: it has printed what was asked for.
    """
    from hvdrun.joining.programs import make_token, run_agent  # noqa: PLC0415 - a job does without them
    from hvdrun.options.programs import read_agent, read_token  # noqa: PLC0415 - the same

    if name == "token":
        answer(make_token(read_token(words)))
    return run_agent(read_agent(words), lambda sentence: print_error(sentence, with_time=False))


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
        from hvdrun.joining.reception import describe_joining  # noqa: PLC0415 - few jobs wait for agents

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


def parse(words: Sequence[str]) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Find what is given to which option, by dest, and the user's command.

    Raises:
        UsageError: an option is used wrongly.
        click.exceptions.Exit: --help or --version has been answered.
    """
    command = Hvdrun(
        "hvdrun",
        params=[
            *make_click_options({"help": print_help, "version": print_version}),
            click.Argument(["command"], nargs=-1, type=click.UNPROCESSED),
        ],
        context_settings={"allow_interspersed_args": False},
        add_help_option=False,
    )
    try:
        context = command.make_context("hvdrun", list(words))
    except click.UsageError as error:
        raise UsageError(error.format_message()) from error
    typed = {
        dest: context.params[dest]
        for option in OPTIONS
        if not option.acts
        if context.get_parameter_source(dest := option.dest) is ParameterSource.COMMANDLINE
    }
    return typed, tuple(context.params["command"])


def print_help(context: click.Context, _option: click.Parameter, value: object) -> None:
    """Answer --help."""
    if value:
        answer(context.get_help())


def print_version(_context: click.Context, _option: click.Parameter, value: object) -> None:
    """Answer --version."""
    if value:
        answer(f"hvdrun {__version__}")


def answer(text: str) -> NoReturn:
    """Print what was asked for, and be done.

    Raises:
        click.exceptions.Exit: always.
        OutputLostError: it cannot be written.
    """
    try:
        if sys.stdout is not None:  # None when hvdrun was started with it closed
            text = text.encode(sys.stdout.encoding, "backslashreplace").decode(sys.stdout.encoding)
        print(text, flush=True)  # noqa: T201 - the command line prints
    except BrokenPipeError:
        discard_stdout()
        raise click.exceptions.Exit(OUTPUT_CLOSED) from None
    except OSError as error:
        discard_stdout()
        raise OutputLostError(error.strerror or str(error)) from error
    raise click.exceptions.Exit(0)


def discard_stdout() -> None:
    """Let what is still buffered go nowhere, or Python would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


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


ABOUT = """\
Starts N workers of COMMAND, on this machine or over SSH on several hosts, connects them for training, and ends them
all when one fails. The exit code is that of the first worker that failed. An elastic job (--min-np,
--host-discovery-script) goes on without those that fail, and grows. Options stand before COMMAND; what follows is its
own. The usual words of mpirun are understood; hvdrun horovodrun takes all options of horovodrun."""

EXAMPLES = (
    ("hvdrun -np 4 python train.py", "four workers on this machine"),
    ("hvdrun -np 8 -H server1:4,server2:4 python train.py", "four on each of two hosts"),
    ("hvdrun -np 8 --hostfile hosts.txt python train.py", "the hosts from a file"),
    ("hvdrun -np 8 -H me@server1:4,server2:4 -p 2222 -x 'NCCL_*' python train.py", "another user, port, variables"),
    ("hvdrun -np 8 --min-np 4 -H server1:4,server2:4 python train.py", "goes on when a host is lost"),
    ("hvdrun -np 2 --host-discovery-script ./hosts.sh python train.py", "hosts that come and go"),
    ("hvdrun -np 2 -- ./program -v", "everything after -- is the command"),
)

EXIT_CODES = (
    ("0", "all workers ended well, or an elastic job has gone on without those that failed"),
    ("1 to 255", "the exit code of the worker whose failure has ended the job; 128+n when signal n ended it"),
    ("2", "hvdrun was used wrongly; nothing was started"),
    ("74", "the output could not be written: the disk is full; all workers, if any, ended well"),
    ("75", "start it again: after a stop notice or a lost host, with too few workers left, or --checkpoint in use"),
    ("124", "the job did not start in time"),
    ("125", "hvdrun itself could not launch"),
    ("126, 127", "the command is not executable, was not found"),
    ("129, 143", "ended by SIGHUP, SIGTERM"),
    ("130", "ended by SIGINT (Ctrl-C), of which hvdrun itself dies"),
    ("141", "whoever read the output has gone, as with | head"),
)
