"""The table of options as click wants it."""

from collections.abc import Callable, Mapping

import click

from hvdrun.options.table import OPTIONS

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
            type=click.UNPROCESSED if option.takes_value else None,
            nargs=option.arity if option.takes_value else None,
            multiple=option.repeats,
            expose_value=not option.acts,
            callback=actions[option.dest] if option.acts else None,
        )
        for option in OPTIONS
    ]
