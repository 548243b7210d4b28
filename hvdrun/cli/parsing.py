"""The words before the command, as click reads them, and the texts that answer some of them."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
from click.core import ParameterSource

from hvdrun.errors import OutputLostError, UsageError
from hvdrun.options.click_options import CommandWords, make_click_options
from hvdrun.options.option import Given
from hvdrun.options.pages import describe_options
from hvdrun.options.table import BY_DEST, OPTIONS
from hvdrun.version import __version__

COMPLETION = "_HVDRUN_COMPLETE"  # the variable by which the script of --completion asks
OUTPUT_CLOSED = 141  # 128 + SIGPIPE, as a shell tells of any program whose reader has gone


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


def parse(words: Sequence[str]) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Find what is given to which option, by dest, and the user's command.

    Raises:
        UsageError: an option is used wrongly.
        click.exceptions.Exit: --help or --version has been answered.
    """
    command = make_command()
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


def make_command() -> Hvdrun:
    """The command line as click sees it."""
    actions = {"help": print_help, "version": print_version, "completion": print_completion}
    return Hvdrun(
        "hvdrun",
        params=[*make_click_options(actions), CommandWords(["command"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"allow_interspersed_args": False},
        add_help_option=False,
    )


def answer_shell(instruction: str) -> int:
    """Answer a shell that completes a command line; the exit code.

    instruction: as the script of --completion puts it into `COMPLETION`, such as "bash_complete".
    """
    from click.shell_completion import shell_complete  # noqa: PLC0415 - only a shell asks

    return shell_complete(make_command(), {}, "hvdrun", COMPLETION, instruction)


def print_completion(context: click.Context, _option: click.Parameter, value: object) -> None:
    """Answer --completion."""
    if value is None or context.resilient_parsing:
        return
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - few ask for it

    shell = BY_DEST["completion"].read(str(value), "--completion")
    found = get_completion_class(str(shell))
    if found is not None:
        answer(found(make_command(), {}, "hvdrun", COMPLETION).source())


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
