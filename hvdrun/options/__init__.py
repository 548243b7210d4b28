"""The one table of options: the parser, --help, what is said of mistyped flags and the table in the docs come from it.

`python -m hvdrun.options --write docs/reference/options.md` writes that table.
"""

from hvdrun.options.click_options import Action, make_click_options
from hvdrun.options.option import Given, Group, Option
from hvdrun.options.pages import describe_options, render_table, replace_table
from hvdrun.options.settling import Settled, settle
from hvdrun.options.table import BY_DEST, BY_FLAG, OPTIONS

__all__ = [
    "BY_DEST",
    "BY_FLAG",
    "OPTIONS",
    "Action",
    "Given",
    "Group",
    "Option",
    "Settled",
    "describe_options",
    "make_click_options",
    "render_table",
    "replace_table",
    "settle",
]
