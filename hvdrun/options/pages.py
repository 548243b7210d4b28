"""The pages of --help. `docs/options.py` writes the same into the documentation and the manual page."""

from collections.abc import Iterable, Iterator, Sequence

from hvdrun.options.option import Option
from hvdrun.options.programs import Program
from hvdrun.options.table import TABLE

Rows = Iterable[tuple[str, str]]

_USAGE = "hvdrun [options] COMMAND [arguments]"
_WIDEST_TERM = 34  # columns; the text of a longer one begins on the next line

ABOUT = """\
Starts N workers of COMMAND, on this machine or over SSH on several hosts, connects them for training, and stops all of
them when one fails. The exit code is that of the first worker that failed. An elastic job (--min-np,
--host-discovery-script) continues without workers that fail, and grows. Options stand before COMMAND; COMMAND gets all
words after it. hvdrun takes the usual options of mpirun; hvdrun horovodrun takes all options of horovodrun, and hvdrun
torchrun those of torchrun."""
EXAMPLES = (
    ("hvdrun -np 4 python train.py", "four workers on this machine"),
    ("hvdrun -np 8 -H server1:4,server2:4 python train.py", "four on each of two hosts"),
    ("hvdrun -np 8 --hostfile hosts.txt python train.py", "the hosts from a file"),
    ("hvdrun -np 8 -H me@server1:4,server2:4 -p 2222 -x 'NCCL_*' python train.py", "another user, port, variables"),
    ("hvdrun -np 8 --min-np 4 -H server1:4,server2:4 python train.py", "continues when a host is lost"),
    ("hvdrun -np 2 --host-discovery-script ./hosts.sh python train.py", "hosts that come and go"),
    ("hvdrun -np 2 -- ./program -v", "everything after -- is the command"),
)
SHORT_ABOUT = """\
Starts N workers of COMMAND, on this machine or over SSH on several hosts, and stops all of them when one fails. Options
stand before COMMAND. hvdrun --help all has all options, the exit codes and more examples; so has man hvdrun."""
USED_OPTIONS = (
    ("-np N", "how many workers to start"),
    ("-H HOST:SLOTS,...", "where; or --hostfile FILE"),
    ("--min-np N", "continue with at least N workers when some are lost"),
    ("--max-restarts N", "start all again after a loss: for torch.distributed"),
    ("-x NAME[=VALUE]", "a variable for the workers"),
    ("--checkpoint DIR", "the folder of the job's checkpoints"),
    ("--output-filename DIR", "a file for the output of each worker"),
    ("--detach", "let the job outlive this terminal"),
    ("--dry-run", "print what would be started"),
    ("-v", "print what hvdrun does"),
)
PROGRAMS = (
    ("ps, attach, logs, wait, stop, resume, rm", "your jobs, and those that were detached"),
    ("doctor", "look at hosts before a job starts"),
    ("stacks, timeline", "where the ranks of a job are; for whom they waited"),
    ("agent, token", "hosts that join a job by themselves"),
    ("horovodrun, torchrun", "take the options of these launchers"),
)
EXIT_CODES = (
    ("0", "all workers have finished, or an elastic job has finished without those that failed"),
    ("1 to 255", "the exit code of the worker whose failure ended the job; 128+n after signal n"),
    ("2", "hvdrun was used wrongly; nothing was started"),
    ("69", "hvdrun wait: there is no such job, or its launcher was killed, and nobody knows how it ended"),
    ("74", "the output could not be written: the disk is full; all workers, if any, have finished"),
    ("75", "start it again: after a stop notice or a lost host, with too few workers left, or --checkpoint in use"),
    ("124", "the job did not start in time"),
    ("125", "hvdrun itself could not launch"),
    ("126, 127", "the command is not executable, was not found"),
    ("129, 143, 152", "stopped by SIGHUP, SIGTERM, SIGXCPU"),
    ("130", "stopped by SIGINT (Ctrl-C); hvdrun itself dies of the signal"),
    ("141", "the reader of the output has closed it, as with | head"),
)


def describe(options: Sequence[Option]) -> Rows:
    """Each option's flags, and its meaning."""
    return [(f"{', '.join(option.flags)} {option.metavar}".rstrip(), _explain(option)) for option in options]


def describe_all() -> Iterator[tuple[str, Rows]]:
    """The headings of hvdrun's options, each with its options."""
    return ((heading, describe(options)) for heading, options in TABLE.items())


def _explain(option: Option) -> str:
    sources = []
    if option.default:
        sources.append(f"default {option.default}")
    if option.environment:
        sources.append(f"or ${option.environment}")
    text = ", ".join(sources)
    if text:
        return f"{option.help} {text[0].upper()}{text[1:]}."
    return option.help


def render_help(usage: str, about: str, sections: Iterable[tuple[str, Rows]]) -> str:
    """A page of --help, as wide as the terminal, up to 80 columns."""
    from click import HelpFormatter  # noqa: PLC0415 - a job does without click

    formatter = HelpFormatter()
    formatter.write_text(f"Usage: {usage}")
    formatter.write_paragraph()
    formatter.write_text(about)
    for heading, rows in sections:
        with formatter.section(heading):
            formatter.write_dl(list(rows), col_max=_WIDEST_TERM)
    return formatter.getvalue().rstrip("\n")


def render_short_help() -> str:
    """The page of `hvdrun --help`: one screen."""
    sections = (
        ("The most used options", USED_OPTIONS),
        ("Programs, as the very first word (hvdrun -- ps runs the command ps)", PROGRAMS),
        ("Examples", EXAMPLES[:2]),
    )
    return render_help(_USAGE, SHORT_ABOUT, sections)


def render_hvdrun_help() -> str:
    """The page of `hvdrun --help all`."""
    return render_help(_USAGE, ABOUT, (*describe_all(), ("Examples", EXAMPLES), ("Exit codes", EXIT_CODES)))


def render_program_help(program: Program) -> str:
    """The page of `hvdrun agent --help` or `hvdrun token --help`."""
    sections = [("Options", describe(program.options))]
    if program.argument:
        sections.insert(0, ("Argument", [(program.argument.metavar, program.argument.help)]))
    return render_help(program.usage, program.about, sections)
