"""The command lines of hvdrun's own small programs: `hvdrun agent` and `hvdrun token`."""

import socket
from collections.abc import Sequence
from typing import Any

import click

from hvdrun.errors import UsageError
from hvdrun.options.option import FILE, SLOTS, TIME, Kind, Option, parse_endpoint, parse_path

_FILE = Option("FILE", "file", "", Kind(parse_path, "FILE", "a file's name"))
AGENT = (
    Option(
        "--join",
        "place",
        "Where hvdrun waits for agents, as it prints it.",
        Kind(parse_endpoint, "ADDRESS:PORT", "an address and a port"),
        "10.0.0.1:29400",
    ),
    Option(
        "--token-file",
        "token_file",
        "The file by which hvdrun and this agent know each other. It may come later.",
        FILE,
        "job.token",
    ),
    Option(
        "--slots",
        "slots",
        "How many workers this host takes. Without it: one for each accelerator, or one.",
        SLOTS,
        "4",
    ),
    Option(
        "--name",
        "name",
        "What the job calls this host. Without it: its own name.",
        Kind(str, "NAME", "a host's name"),
        "node1",
    ),
    Option(
        "--join-timeout",
        "join_timeout",
        "How long to look for hvdrun before ending with exit code 75. Without it: for as long as it takes.",
        TIME,
        "10m",
    ),
)
TOKEN = (
    Option(
        "--lifetime",
        "lifetime",
        "For how long agents may join with it. Those that have joined stay.",
        TIME,
        "24h",
        default="24h",
    ),
)
ABOUT_AGENT = (
    "Join a job that was started with --wait-for-agents, and run its workers on this host until it ends. The agent "
    "waits until hvdrun is there. Exit codes: the job's own when it has ended; 0 it needs no more agents; 2 wrong use; "
    "75 after a stop notice (SIGTERM, SIGUSR2), or hvdrun has gone, or has given this agent up: start it again; "
    "125 hvdrun has refused it; 130 ended by Ctrl-C; 143 ended by a second SIGTERM."
)
ABOUT_FILES = (
    "Make a token before the job that uses it: FILE for hvdrun and all agents, and FILE.key for hvdrun alone. Only "
    "their owner can read them."
)


def read_agent(words: Sequence[str]) -> dict[str, Any]:
    """The values of `hvdrun agent`, by dest.

    Raises:
        UsageError: the words are wrong.
        click.exceptions.Exit: --help has been answered.
    """
    values = _read("hvdrun agent", ABOUT_AGENT, AGENT, words)
    for dest, flag in (("place", "--join"), ("token_file", "--token-file")):
        if values[dest] is None:
            raise UsageError(
                f"hvdrun agent lacks {flag}: copy the line that hvdrun --wait-for-agents prints, as in hvdrun agent "
                "--join 10.0.0.1:29400 --token-file job.token"
            )
    if values["name"] is None:
        values["name"] = socket.gethostname()
    return values


def read_token(words: Sequence[str]) -> dict[str, Any]:
    """The values of `hvdrun token`, by dest.

    Raises:
        UsageError: the words are wrong.
        click.exceptions.Exit: --help has been answered.
    """
    return _read("hvdrun token", ABOUT_FILES, TOKEN, words, _FILE)


def _read(
    name: str, about: str, options: Sequence[Option], words: Sequence[str], argument: Option | None = None
) -> dict[str, Any]:
    parameters: list[click.Parameter] = [
        click.Option(
            [*option.flags, option.dest],
            metavar=option.metavar,
            help=option.help,
            default=option.default,
            show_default=option.default is not None,
        )
        for option in options
    ]
    if argument is not None:
        parameters.append(click.Argument([argument.dest], metavar=argument.flags[0]))
    command = click.Command(
        name, params=parameters, help=about, context_settings={"help_option_names": ["-h", "--help"]}
    )
    try:
        context = command.make_context(name, list(words))
    except click.UsageError as error:
        raise UsageError(f"{error.format_message().rstrip('.')}: {name} --help lists its options.") from error
    return {
        option.dest: None if (text := context.params[option.dest]) is None else option.read(text, option.flags[0])
        for option in (*options, *(() if argument is None else (argument,)))
    }
