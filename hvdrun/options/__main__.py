"""`python -m hvdrun.options --write docs/reference/options.md` writes the table of that page."""

import sys
from pathlib import Path

from hvdrun.options.pages import replace_table

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--write", name]:
            path = Path(name)
            path.write_text(replace_table(path.read_text()))
        case _:
            sys.exit("usage: python -m hvdrun.options --write docs/reference/options.md")
