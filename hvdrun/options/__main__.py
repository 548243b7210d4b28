"""`python -m hvdrun.options --readme README.md` writes the README's table."""

import sys
from pathlib import Path

from hvdrun.options.pages import replace_readme_table

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--readme", name]:
            path = Path(name)
            path.write_text(replace_readme_table(path.read_text()))
        case _:
            sys.exit("usage: python -m hvdrun.options --readme README.md")
