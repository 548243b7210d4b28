"""The one table of options: the parser, --help, what is said of mistyped flags and the README's table come from it.

`python -m hvdrun.options --readme README.md` writes the README's table.
"""
