"""The one table of options: the parser, --help, what is said of mistyped flags and the table in the docs come from it.

`python -m hvdrun.options --write docs/reference/options.md` writes that table.
"""
