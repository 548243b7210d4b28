"""The one table of options: the parser, --help, what is said of mistyped flags and the README's table come from it.

`python -m hvdrun.options --readme README.md` writes the README's table.
"""

from hvdrun.options.click_options import Action, make_click_options
from hvdrun.options.option import Given, Group, Option
from hvdrun.options.pages import describe_options, readme_table, replace_readme_table
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
    "readme_table",
    "replace_readme_table",
    "settle",
]
