"""The command line, from its words to the exit code.

A wrong request gets one sentence here before anything starts. Only a job that will run imports gRPC and other
large packages: --help and a mistyped flag answer quickly.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn

from hvdrun.cli.messages import end_by_interrupt, print_error, print_text, report
from hvdrun.cli.run import Launch, run
from hvdrun.errors import UsageError
from hvdrun.options.flags import find_option, parse
from hvdrun.options.kinds import LogLevel
from hvdrun.options.programs import JOB_PROGRAMS
from hvdrun.options.request import complete, make_job, refuse_missing_size, starts_torchrun
from hvdrun.options.table import BY_FLAG, COMPLETION_VARIABLE
from hvdrun.options.words import read_words
from hvdrun.spec.jobspec import JobSpec
from hvdrun.version import __version__

ALL = "all"  # after --help
_MIN_LIKENESS = 0.8  # of difflib: agnet is like agent, agent.py is not


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run hvdrun and return its exit code.

    Args:
        arguments: the words after the program's name; those of this process unless given.
        launch: runs the job; `hvdrun.job.launch` unless given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = words[words[:1] in (["horovodrun"], ["torchrun"]) :]
    with_time = asks_for("marks_times", options)
    try:
        open_missing_descriptors()
        if (instruction := os.environ.get(COMPLETION_VARIABLE)) is not None and arguments is None:
            from hvdrun.cli.completion import answer_shell  # noqa: PLC0415 - only a shell asks

            return print_text(answer_shell(instruction, words))
        if words[:1] == ["doctor"]:
            return examine_hosts(words[1:])
        if words[:1] in (["stacks"], ["timeline"]):
            return show_page(words[0], words[1:])
        if words and words[0] in JOB_PROGRAMS:
            return run_job_program(words[0], words[1:])
        if words[:1] in (["agent"], ["token"]):
            return run_own_program(words[0], words[1:])
        if options == words:
            asked = read_request(words)
        else:
            asked = read_foreign(words[0], options)
        if isinstance(asked, str):
            return print_text(asked)
        return run(asked, launch)
    except KeyboardInterrupt:
        return end_by_interrupt()
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - an error of hvdrun is reported as one
        with_traceback = words[:1] == ["agent"] or asks_for_details(options)  # hvdrun agent has no -v
        return report(error, with_traceback=with_traceback, with_time=with_time)


def run_own_program(name: str, words: Sequence[str]) -> int:
    """Run `hvdrun agent` or `hvdrun token` and return its exit code.

    Raises:
        HvdrunError: it is used wrongly, or fails.
    """
    from hvdrun.options.programs import AGENT, TOKEN, read_agent, read_token  # noqa: PLC0415 - a job does without them

    program = AGENT
    if name == "token":
        program = TOKEN
    given = program.parse(words)
    if "help" in given:
        from hvdrun.options.pages import render_program_help  # noqa: PLC0415 - few ask for it

        return print_text(render_program_help(program))
    if program is TOKEN:
        values = read_token(given)
        from hvdrun.joining.token import create_token  # noqa: PLC0415 - a wrong command line does without it

        return print_text(create_token(values))
    values = read_agent(given)
    from hvdrun.joining.joining_agent import run_agent  # noqa: PLC0415 - a wrong command line does without it

    return run_agent(values, lambda sentence: print_error(sentence, with_time=False))


def examine_hosts(words: Sequence[str]) -> int:
    """Run `hvdrun doctor` and return its exit code.

    Raises:
        HvdrunError: it is used wrongly, or this machine lacks what it needs.
    """
    from hvdrun.doctor.program import read_request as read_examination  # noqa: PLC0415 - a job does without it
    from hvdrun.doctor.program import run as run_examination  # noqa: PLC0415 - a job does without it

    asked = read_examination(words)
    if isinstance(asked, str):
        return print_text(asked)
    page, code = run_examination(asked)
    return print_text(page) or code


def show_page(name: str, words: Sequence[str]) -> int:
    """Run `hvdrun stacks` or `hvdrun timeline` and return its exit code.

    Raises:
        HvdrunError: it is used wrongly, or finds nothing.
    """
    if name == "stacks":
        from hvdrun.hangs.program import run as show_stacks  # noqa: PLC0415 - a job does without it

        page, code = show_stacks(words)
        return print_text(page) or code
    from hvdrun.timeline.program import read_request as read_reading  # noqa: PLC0415 - a job does without it
    from hvdrun.timeline.program import run as read_timeline  # noqa: PLC0415 - a job does without it

    reading = read_reading(words)
    return print_text(reading if isinstance(reading, str) else read_timeline(reading))


def run_job_program(name: str, words: Sequence[str]) -> int:
    """Run `hvdrun ps`, `hvdrun wait` or another program about jobs, and return its exit code.

    Raises:
        HvdrunError: it is used wrongly, or there is no such job.
    """
    from hvdrun.cli.jobs import run as run_program  # noqa: PLC0415 - a job does without it

    page, code = run_program(name, words, lambda sentence: print_error(sentence, with_time=False))
    return (print_text(page) if page else 0) or code


def read_request(words: Sequence[str]) -> JobSpec | str:
    """The job that the command line asks for, or the page that answers it.

    Raises:
        HvdrunError: the command line is wrong, or names something that does not exist.
    """
    typed, start = read_words(words, find_option)
    for option, _, values in typed:
        if option.dest == "help":
            return render_page(option.dest, *words[start : start + 1])
        if option.acts:
            return render_page(option.dest, *values)
    return read_spec(words)


def read_spec(words: Sequence[str]) -> JobSpec:
    """The job that the command line asks for, and the environment variables that give values to options.

    Raises:
        HvdrunError: the command line is wrong, or names something that does not exist.
    """
    typed, command = parse(words)
    return make_job(typed, command, os.environ, lambda values: refuse_incomplete(words, values))


def refuse_incomplete(words: Sequence[str], values: Mapping[str, Any]) -> NoReturn:
    """Refuse a command line without a number of workers; its first word may be a mistyped program of hvdrun.

    Raises:
        UsageError: always.
    """
    from hvdrun.cli.completion import PROGRAMS  # noqa: PLC0415 - only an error needs it

    if words and shutil.which(words[0]) is None:
        for nearest in get_close_matches(words[0], PROGRAMS, 1, _MIN_LIKENESS):
            raise UsageError(f"there is no program {words[0]!r}: did you mean hvdrun {nearest}?")
    if starts_torchrun(parse(words)[1]):
        raise UsageError(
            "torchrun has to be the first word, as in hvdrun torchrun --nproc-per-node 2 train.py; with --dry-run it "
            "prints the command of hvdrun, which takes more options."
        )
    refuse_missing_size(complete(words, values))


def render_page(dest: str, *values: str) -> str:
    """The page that an option prints.

    Raises:
        BadValueError: the option does not take this value.
    """
    if dest == "version":
        return f"hvdrun {__version__}"
    if dest == "completion":
        from hvdrun.cli.completion import render_script  # noqa: PLC0415 - few ask for it

        return render_script(*values)
    from hvdrun.options.pages import render_hvdrun_help, render_short_help  # noqa: PLC0415 - few ask for it

    if values == (ALL,):
        return render_hvdrun_help()
    return render_short_help()


def read_foreign(launcher: str, words: Sequence[str]) -> JobSpec | str:
    """The same for the command line of horovodrun or torchrun.

    Raises:
        HvdrunError: see `read_request`.
    """
    from hvdrun.cli import horovodrun, torchrun  # noqa: PLC0415 - hvdrun itself does without them

    if launcher == "torchrun":
        return torchrun.read_request(words)
    return horovodrun.read_request(words)


def asks_for(dest: str, words: Sequence[str]) -> bool:
    """Whether a switch is among the options, also of a command line that has errors."""
    with suppress(UsageError):  # then all its words are looked at
        words = words[: read_words(words, find_option)[1]]
    return any(word in BY_FLAG and BY_FLAG[word].dest == dest for word in words)


def asks_for_details(words: Sequence[str]) -> bool:
    """The same for -v, or the level that is the same."""
    if asks_for("verbose", words):
        return True
    with suppress(UsageError, ValueError):  # the command line has errors
        typed, _ = read_words(words, find_option)
        return any(option.dest == "log_level" and LogLevel(*values) is LogLevel.DEBUG for option, _, values in typed)
    return False


def open_missing_descriptors() -> None:
    """Open closed descriptors of 0 to 2, or the next socket would become the job's standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
