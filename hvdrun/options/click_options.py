"""The table of options as click wants it, and what a shell may complete."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, EnumType
from typing import TYPE_CHECKING

import click

from hvdrun.options.option import FILE_NAME, FOLDER_NAME, Kind
from hvdrun.options.table import OPTIONS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Action = Callable[[click.Context, click.Parameter, object], None]


def make_click_options(actions: Mapping[str, Action]) -> list[click.Parameter]:
    """All options. Values stay text: `Option.read` makes errors that know where a value came from.

    Args:
        actions: by dest, what to do for the options that act at once.
    """
    return [
        click.Option(
            [*option.flags, option.dest],
            is_flag=None if option.takes_value else True,  # False would let click take a value for optional
            type=None if option.kind is None else _Word(option.kind),
            nargs=option.arity if option.takes_value else None,
            multiple=option.repeats,
            expose_value=not option.acts,
            callback=actions[option.dest] if option.acts else None,
            help=option.help,
        )
        for option in OPTIONS
    ]


class _Word(click.types.UnprocessedParamType):
    """A word of an option, which a shell completes."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - the same
        incomplete: str,
    ) -> "list[CompletionItem]":
        """The words that may stand here; files or folders are left to the shell."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only a shell asks

        if isinstance(self._kind.parse, EnumType):
            members: Iterable[Enum] = self._kind.parse
            return [CompletionItem(each.value) for each in members if each.value.startswith(incomplete)]
        places = {FILE_NAME: "file", FOLDER_NAME: "dir"}
        return [CompletionItem(incomplete, type=places[name]) for name in places if name == self._kind.metavar]


class CommandWords(click.Argument):
    """The user's command: a shell completes files."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":  # noqa: ARG002 - click's
        """See `_Word`."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only a shell asks

        return [CompletionItem(incomplete, type="file")]
