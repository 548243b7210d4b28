"""`python -m hvdrun.options --write docs/reference/options.md` writes the tables of that page."""

import sys
from pathlib import Path

from hvdrun.options.pages import replace_tables

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write", name]:
            path = Path(name)
            path.write_text(replace_tables(path.read_text()))
        case _:
            sys.exit("usage: python -m hvdrun.options --write docs/reference/options.md")
