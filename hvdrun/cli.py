"""The command line: the only room that knows click, prints and exits.

What is wrong with a request is said here in one sentence before anything starts. Everything heavier than click is
imported only for a job that will run: --help and a mistyped flag answer at once.
"""

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from hvdrun import __version__
from hvdrun.command import Surroundings, resolve_command
from hvdrun.discovery import discover_hosts
from hvdrun.errors import CANNOT_LAUNCH, HvdrunError, LaunchError, UsageError
from hvdrun.flags import find_command
from hvdrun.jobspec import JobSpec
from hvdrun.options import OPTIONS, describe_options, make_click_options

if TYPE_CHECKING:
    from hvdrun.console import Console

INTERRUPTED = 130
LAST_WORDS_SECONDS = 5.0  # for what a launch that raised has left to be written
LONGEST_EXAMPLE = 120  # characters; a longer command line is not repeated in an error
OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as a shell tells of any program whose reader has gone

ABOUT = """\
Starts N workers of COMMAND on this machine, connects them for training, and ends them all when one
fails. The exit code is that of the first worker that failed. Options stand before COMMAND; what follows is its own."""

EXAMPLES = (
    ("hvdrun -np 4 python train.py", "four workers on this machine"),
    ("hvdrun -np 4 -H localhost:8 python train.py --lr 0.1", "four of the eight slots that this machine offers"),
    ("hvdrun -np 8 --hostfile hosts.txt python train.py", "the hosts from a file"),
    ("hvdrun -np 2 -- ./program -v", "everything after -- is the command"),
)

EXIT_CODES = (
    ("0", "all workers ended well"),
    ("1 to 255", "the exit code of the first worker that failed; 128+n when signal n ended it"),
    ("2", "hvdrun was used wrongly; nothing was started"),
    ("75", "a host was lost"),
    ("124", "the job did not start in time"),
    ("125", "hvdrun itself could not launch"),
    ("126, 127", "the command is not executable, was not found"),
    ("129, 130, 143", "ended by SIGHUP, SIGINT (Ctrl-C), SIGTERM"),
    ("141", "whoever read the output has gone, as with | head"),
)


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
        launch: what runs the job; `hvdrun.launch.launch` unless given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        open_missing_descriptors()
        return run(read_spec(words), launch)
    except click.exceptions.Exit as answered:
        return answered.exit_code
    except HvdrunError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a fault of ours: told, not thrown at the user
        return confess(error, with_traceback=asks_for_more(words))


def read_spec(words: Sequence[str]) -> JobSpec:
    """Turn the command line, and the environment variables that stand for options, into a job.

    Raises:
        HvdrunError: it is wrong, or names what does not exist.
        click.exceptions.Exit: --help or --version has been answered.
    """
    find_command(words)
    values, command = parse(words)
    if values["size"] is None:
        raise UsageError(f"the number of workers is missing: give it with -np, as in {complete(words, values)}")
    size: int = values["size"]
    return JobSpec(
        command=command,
        size=size,
        hosts=discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=size),
        directory=find_directory(),
        start_timeout_seconds=values["start_timeout_seconds"],
        lease_seconds=values["lease_seconds"],
        grace_seconds=values["grace_seconds"],
        stdin_rank=values["stdin_rank"],
        prefork=not values["no_prefork"],
        marks_ranks=not values["no_prefix"],
        marks_times=values["marks_times"],
        verbose=values["verbose"],
        dry_run=values["dry_run"],
    )


def run(spec: JobSpec, launch: Launch | None) -> int:
    """Run a job that is right as far as can be seen from here; its exit code.

    Raises:
        HvdrunError: it cannot be launched.
        click.exceptions.Exit: --dry-run has been answered.
    """
    around = Surroundings(spec.directory, os.environ.get("PATH"), sys.executable)
    command = resolve_command(spec.command, around)
    from hvdrun.console import Console, Marks  # noqa: PLC0415 - only a job that will run pays for it

    marks = Marks(ranks=spec.marks_ranks, hosts=len(spec.hosts) > 1, times=spec.marks_times)
    console = Console(verbose=spec.verbose, marks=marks)
    try:
        if command != spec.command:
            console.verbose(f"PATH has no {spec.command[0]}: the workers use hvdrun's own interpreter, {command[0]}")
        spec = replace(spec, command=command)
        if spec.dry_run:
            answer(describe(spec))
        return (launch or load_launch())(spec, console)
    finally:
        console.end(LAST_WORDS_SECONDS)


def describe(spec: JobSpec) -> str:
    """What would be started, for --dry-run."""
    from hvdrun.plan import make_plan, render_plan  # noqa: PLC0415 - brings what an agent needs

    return render_plan(make_plan(spec, os.environb))


def load_launch() -> Launch:
    """What runs jobs."""
    from hvdrun.launch import launch  # noqa: PLC0415 - brings grpc and cryptography

    return launch


def parse(words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the options into their values by name, and the user's command.

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
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.acts:
            continue
        text = context.params[option.dest]
        if option.takes_value:
            from_environment = context.get_parameter_source(option.dest) is ParameterSource.ENVIRONMENT
            source = f"${option.environment}" if from_environment else option.flags[0]
            text = option.default if text is None else text
            values[option.dest] = None if text is None else option.read(text, source)
        else:
            values[option.dest] = bool(text)
    return values, tuple(context.params["command"])


def complete(words: Sequence[str], values: Mapping[str, Any]) -> str:
    """The command line as it would be with -np: all slots of the hosts that were given, or two workers."""
    size = 2
    if values["hosts"] is not None or values["hostfile"] is not None:
        hosts = discover_hosts(listed=values["hosts"], hostfile=values["hostfile"], size=size)
        size = sum(host.slots for host in hosts)
    typed = shlex.join(words)
    is_shown = find_command(words) < len(words) and typed.isprintable() and len(typed) <= LONGEST_EXAMPLE
    return f"hvdrun -np {size} {typed if is_shown else 'python train.py'}"


def find_directory() -> Path:
    """The working directory, for all workers.

    Raises:
        UsageError: it was removed.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError("the working directory does not exist any more: change to one that does.") from error


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
        LaunchError: it cannot be written.
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
        raise LaunchError(f"the standard output cannot be written: {error.strerror}.") from error
    raise click.exceptions.Exit(0)


def discard_stdout() -> None:
    """Let what is still buffered go nowhere, or Python would complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def complain(sentence: str) -> None:
    """Say on stderr, in one line, what is wrong."""
    if sys.stderr is not None:  # None when hvdrun was started with it closed
        with suppress(OSError):
            print("hvdrun:", " ".join(sentence.splitlines()), file=sys.stderr, flush=True)  # noqa: T201 - the command line prints


def asks_for_more(words: Sequence[str]) -> bool:
    """Whether -v is among the options; said of a command line that may not have been understood."""
    with suppress(UsageError):
        words = words[: find_command(words)]
    return not {"-v", "--verbose"}.isdisjoint(words)


def confess(error: BaseException, *, with_traceback: bool) -> int:
    """Say that hvdrun itself is at fault; the exit code."""
    if with_traceback and sys.stderr is not None:
        with suppress(OSError):
            traceback.print_exception(error)
    remedy = (
        "please report it with this traceback" if with_traceback else "please run it with -v and report what it says"
    )
    complain(f"this is a fault of hvdrun's own, {remedy}: {type(error).__name__}: {error}")
    return CANNOT_LAUNCH


def open_missing_descriptors() -> None:
    """Fill descriptors 0 to 2 where they were closed, or the next socket would become the job's standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
