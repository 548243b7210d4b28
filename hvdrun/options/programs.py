"""The command lines of hvdrun's other programs: `hvdrun agent`, `hvdrun token`, `hvdrun doctor` and others."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from hvdrun.errors import UnknownOptionError, UsageError
from hvdrun.options.kinds import FILE, SLOTS, TIME, parse_endpoint, parse_whole_number
from hvdrun.options.option import Kind, Option, RawValues
from hvdrun.options.words import Typed, gather, read_words, split_flag

_HELP = Option("-h --help", "help", "Print this page.", acts=True)


@dataclass(frozen=True, slots=True)
class Program:
    """A program with options, and at most one argument.

    argument: the option that the argument gives; None for a program without arguments.
    needs_argument: the program does not run without it.
    """

    name: str
    about: str
    options: tuple[Option, ...]
    argument: Option | None = None
    needs_argument: bool = True

    @property
    def usage(self) -> str:
        """The form of its command line."""
        usage = f"{self.name} [OPTIONS]"
        if self.argument is None:
            return usage
        if self.needs_argument:
            return f"{usage} {self.argument.metavar}"
        return f"{usage} [{self.argument.metavar}]"

    def find_option(self, word: str) -> Typed:
        """Return the option that a word names.

        Raises:
            UnknownOptionError: there is no such option.
        """
        known = {flag: option for option in self.options for flag in option.flags}
        typed = split_flag(word, known)
        if typed is None:
            flag = word.partition("=")[0]
            nearest = next(iter(get_close_matches(flag, known, 1)), None)
            raise UnknownOptionError(flag, nearest, f"{self.name} --help lists its options.")
        return typed

    def parse(self, words: Sequence[str]) -> dict[str, RawValues]:
        """Read the command line: the values of the options by dest. Options may follow the argument.

        Raises:
            UsageError: an option or the argument is wrong.
        """
        given: dict[str, RawValues] = {}
        while words:
            typed, start = read_words(words, self.find_option)
            given |= gather(typed)
            for word in words[start : start + 1]:
                if self.argument is None or self.argument.dest in given:
                    raise UsageError(f"{word!r} is one argument too many: {self.name} --help lists its options.")
                given[self.argument.dest] = word
            words = words[start + 1 :]
        return given

    def read(self, given: dict[str, RawValues]) -> dict[str, Any]:
        """The values of all options and of the argument, by dest; None for those without a value.

        Raises:
            BadValueError: a value cannot be read.
        """
        if self.argument:
            rows = (*self.options, self.argument)
        else:
            rows = self.options
        texts = {row: given.get(row.dest, row.default) for row in rows if not row.acts}
        return {row.dest: None if text is None else row.read(str(text), row.flags[0]) for row, text in texts.items()}


AGENT = Program(
    "hvdrun agent",
    "Join a job that was started with --wait-for-agents, and run its workers on this host until it ends. The agent "
    "waits until hvdrun listens. Exit codes: that of the job when it has ended; 0 the job needs no more agents; 2 "
    "wrong use; 75 start the agent again: after a stop notice (SIGTERM, SIGUSR2), or hvdrun has stopped or no longer "
    "waits for this agent; 125 hvdrun has refused it; 130 stopped by Ctrl-C; 143 stopped by a second SIGTERM.",
    (
        Option(
            "--join",
            "endpoint",
            "Where hvdrun waits for agents, as it prints it.",
            Kind(parse_endpoint, "ADDRESS:PORT", "an address and a port", "10.0.0.1:29400"),
        ),
        Option(
            "--token-file",
            "token_file",
            "The file with the token of the job. The agent waits until it exists.",
            replace(FILE, example="job.token"),
        ),
        Option(
            "--slots",
            "slots",
            "How many workers this host takes. Without it: one for each accelerator, or one.",
            SLOTS,
        ),
        Option(
            "--name",
            "name",
            "The name of this host in the job. Without it: its own name.",
            Kind(str, "NAME", "a host's name", "node1"),
        ),
        Option(
            "--join-timeout",
            "join_timeout",
            "How long to look for hvdrun before the agent ends with exit code 75. Without it: without a limit.",
            TIME,
        ),
        _HELP,
    ),
)
DOCTOR = Program(
    "hvdrun doctor",
    "Look at the hosts of a job before it starts, and name what is wrong, with the remedy. Give it the options of the "
    "job that name its hosts and how they are reached, or the whole command of the job. Exit codes: 0 nothing is "
    "wrong; 2 wrong use; 3 there is a finding.",
    (
        Option("--json", "json", "Print what was found as JSON."),
        Option("--clean", "clean", "End the processes of earlier jobs whose agent has ended, and remove their files."),
        Option(
            "--test",
            "test",
            "Let all hosts reduce a tensor of 64 MB with each backend, and each host with each other one, and name the "
            "slowest pair.",
        ),
        _HELP,
    ),
)
_JOB = Option(
    "JOB",
    "job",
    "The job, by its name, the beginning of it, or `last`. Without it: the only one that runs.",
    Kind(str, "JOB", "the name of a job"),
)
STACKS = Program(
    "hvdrun stacks",
    "Show where each rank of a job is, which you have started on this machine. Equal places are shown once. The job "
    "goes on. Exit codes: 0 all ranks have answered; 2 wrong use; 3 a rank did not answer, and the page says why; 69 "
    "there is no such job, or its hvdrun does not answer.",
    (
        Option(
            "--native",
            "native",
            "With the frames of C and C++, as far as py-spy is installed on the hosts. It stops each worker for some "
            "tenths of a second.",
        ),
        Option("--json", "json", "Print all frames as JSON."),
        _HELP,
    ),
    _JOB,
    needs_argument=False,
)
PS = Program(
    "hvdrun ps",
    "List your jobs on this machine: those that run, and the detached ones that ended within a day.",
    (
        Option("-a --all", "all", "List all detached jobs that are kept."),
        Option("--json", "json", "Print them as JSON."),
        _HELP,
    ),
)
WAIT = Program(
    "hvdrun wait",
    "Wait until a detached job has ended, and end with its exit code. Exit codes besides: 2 wrong use; 69 there is no "
    "such job, or nobody knows how it ended, as its launcher was killed; 130 Ctrl-C, which does not stop the job.",
    (_HELP,),
    _JOB,
    needs_argument=False,
)
STOP = Program(
    "hvdrun stop",
    "Stop a job that runs: its workers have the time of --grace. Stop it twice to end them at once. Without a name: "
    "the only detached one. Returns when the job has ended. Exit codes: 0 it has ended; 2 wrong use; 69 there is no "
    "such job, or its launcher was killed; 130 "
    "Ctrl-C, and the job still ends.",
    (
        Option(
            "--here",
            "here",
            "Stop what runs of the job on this machine, also where its launcher is gone: its workers get a stop "
            "notice, and without a launcher a minute to save. The second time they have the time of --grace.",
        ),
        _HELP,
    ),
    _JOB,
    needs_argument=False,
)
RANK = Option(
    "--rank",
    "rank",
    "Print the lines of this rank alone.",
    Kind(parse_whole_number, "RANK", "the rank of one worker", "3"),
)
LOGS = Program(
    "hvdrun logs",
    "Print the output of a detached job, on standard output and standard error as it came. Exit codes: 0 it is "
    "printed; 2 wrong use; 69 there is no such job; 130 Ctrl-C, which does not stop the job.",
    (
        Option("-f --follow", "follow", "Go on until the job has ended."),
        RANK,
        _HELP,
    ),
    _JOB,
    needs_argument=False,
)
ATTACH = Program(
    "hvdrun attach",
    "Show the last output of a detached job, and go on as if it were not detached, until it has ended; end with its "
    "exit code. Ctrl-C leaves, and the job goes on. Exit codes besides: as of hvdrun wait.",
    (_HELP,),
    _JOB,
    needs_argument=False,
)
RESUME = Program(
    "hvdrun resume",
    "Start the server of a detached job again, where it was killed with its guardian, or has ended with this machine. "
    "Workers on other hosts train on meanwhile, for the time of --server-timeout. Exit codes: 0 the server runs; 1 "
    "the job cannot be resumed; 2 wrong use; 69 there is no such job.",
    (_HELP,),
    _JOB,
)
RM = Program(
    "hvdrun rm",
    "Remove what is kept of a detached job that has ended. Without it, that stays for 30 days, or until all have 1 GB. "
    "Exit codes: 0 it is removed; 1 the job runs, or may run; 2 wrong use; 69 there is no such job.",
    (
        Option(
            "--force",
            "force",
            "Also where the launcher was killed and workers on other hosts may train on: no hvdrun resume finds them "
            "then.",
        ),
        _HELP,
    ),
    replace(_JOB, help="The job, by its name, the beginning of it, or `last`."),
)
JOB_PROGRAMS = {"ps": PS, "attach": ATTACH, "logs": LOGS, "wait": WAIT, "stop": STOP, "resume": RESUME, "rm": RM}
TIMELINE = Program(
    "hvdrun timeline",
    "Read the timeline of a job (hvdrun --timeline FILE), with all its parts: for which ranks the others waited, and "
    "which collectives took longest.",
    (Option("--json", "json", "Print what was found as JSON."), _HELP),
    Option("FILE", "file", "The file that the job has written.", replace(FILE, example="")),
)
TOKEN = Program(
    "hvdrun token",
    "Make a token before the job that uses it: FILE for hvdrun and all agents, and FILE.key for hvdrun alone. Only "
    "their owner can read them.",
    (
        Option(
            "--lifetime",
            "lifetime",
            "How long agents may join with it. Agents that have joined stay.",
            TIME,
            default="24h",
        ),
        _HELP,
    ),
    Option("FILE", "file", "The file to write.", replace(FILE, example="")),
)


def read_agent(given: dict[str, RawValues]) -> dict[str, Any]:
    """The values of `hvdrun agent`, by dest.

    Raises:
        UsageError: a value is missing, or cannot be read.
    """
    values = AGENT.read(given)
    for dest, flag in (("endpoint", "--join"), ("token_file", "--token-file")):
        if values[dest] is None:
            raise UsageError(
                f"{flag} is missing: copy the line that hvdrun --wait-for-agents prints, as in "
                "hvdrun agent --join 10.0.0.1:29400 --token-file job.token."
            )
    if values["name"] is None:
        values["name"] = socket.gethostname()
    return values


def read_token(given: dict[str, RawValues]) -> dict[str, Any]:
    """The values of `hvdrun token`, by dest.

    Raises:
        UsageError: a value is missing, or cannot be read.
    """
    values = TOKEN.read(given)
    if values["file"] is None:
        raise UsageError(f"FILE, the file to write, is missing: {TOKEN.name} --help lists its options.")
    return values
