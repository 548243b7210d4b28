"""Completes hvdrun's command line in a shell, by click.

Only `--completion`, and a shell that completes words, import this module.
"""

from enum import Enum, EnumType
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from hvdrun.options.kinds import FILE_NAME, FOLDER_NAME
from hvdrun.options.option import Kind
from hvdrun.options.table import BY_DEST, COMPLETION_VARIABLE, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLACES = {FILE_NAME: "file", FOLDER_NAME: "dir"}


def render_script(shell: str) -> str:
    """The script that makes a shell complete the command line of hvdrun.

    Raises:
        BadValueError: there is no such shell.
    """
    found = get_completion_class(str(BY_DEST["completion"].read(shell, "--completion")))
    if found is None:
        raise ValueError(f"click completes no words in {shell}")
    return found(_make_command(), {}, "hvdrun", COMPLETION_VARIABLE).source()


def answer_shell(instruction: str) -> int:
    """Print the words that may follow in a shell's command line, and return the exit code.

    instruction: the value of the variable, such as "bash_complete".
    """
    return shell_complete(_make_command(), {}, "hvdrun", COMPLETION_VARIABLE, instruction)


def _make_command() -> click.Command:
    """The command line for click."""
    options = [
        click.Option(
            [*option.flags, option.dest],
            is_flag=None if option.takes_value else True,  # click would take the value of a False as optional
            type=None if option.kind is None else _Value(option.kind),
            nargs=option.arity if option.takes_value else None,
            multiple=option.repeats,
            help=option.help,
        )
        for option in OPTIONS
    ]
    command = _Command(["command"], nargs=-1, type=click.UNPROCESSED)
    settings = {"allow_interspersed_args": False}
    return click.Command("hvdrun", params=[*options, command], context_settings=settings, add_help_option=False)


class _Value(click.types.UnprocessedParamType):
    """The value of an option."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - the same
        incomplete: str,
    ) -> list[CompletionItem]:
        """The values that begin so; the shell itself completes files and folders."""
        if isinstance(self._kind.parse, EnumType):
            members: Iterable[Enum] = self._kind.parse
            return [CompletionItem(each.value) for each in members if each.value.startswith(incomplete)]
        return [CompletionItem(incomplete, type=kind) for name, kind in _PLACES.items() if name == self._kind.metavar]


class _Command(click.Argument):
    """The user's command, which the shell completes like any file."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's
        """The file that begins so."""
        return [CompletionItem(incomplete, type="file")]
