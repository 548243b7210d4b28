"""The outputs that deploy/README.md shows: each is what a test has seen, but for names and numbers of the moment.

A sample is the block after `<!-- sample: NAME -->`. `pytest -m sample --rewrite` writes those anew whose lines differ.
"""

import re
from collections.abc import Mapping
from itertools import groupby

from tests.house.sources import ROOT

PAGE = ROOT / "deploy" / "README.md"
_BLOCK = "(<!-- sample: {} -->\n```\n)(.*?)(^```$)"
_OF_THE_MOMENT = {
    r"\d+(\.\d+){3}:\d+|\[[0-9a-f:]+\]:\d+": "10.0.0.5:29400",
    r"\S+/hvdrun-job-[0-9a-f]{8}\.token": "/work/hvdrun-job-1f0c22aa.token",
    r"(?<=began with )[1-9]\d*": "40",
    r"(?<=checkpoint-)\d+": "000040",
    r"(?<=Slurm job )\d+|(?<= of job )\d+|(?<=checkpoints-)\d+": "17",
}
_BY_CHANCE = re.compile(r"^slurmstepd-|^\[[1-9]\d*@\w+\] began with ")
PARTIAL = re.compile(r"; \d+ of \d+ slots\.$")  # the scheduler decides how many lines report arrivals


def check_sample(
    name: str, output: str, names: Mapping[str, str] = {}, *, without: re.Pattern[str] = _BY_CHANCE, rewrite: bool
) -> None:
    """Compare an output with what the page shows of it; lines in any order, equal ones once.

    names: what the page has for words of this run. without: lines that the page leaves out.
    """
    for word, shown in names.items():
        output = output.replace(word, shown)
    for pattern, value in _OF_THE_MOMENT.items():
        output = re.sub(pattern, value, output)
    lines = dict.fromkeys(line.rstrip() for line in output.splitlines() if not without.search(line))
    seen = [line for _, some in groupby(lines, _is_of_worker) for line in sorted(some, key=_find_rank)]
    page = PAGE.read_text(encoding="utf-8")
    block = re.compile(_BLOCK.format(re.escape(name)), re.DOTALL | re.MULTILINE)
    ((begin, former, end),) = block.findall(page)
    if rewrite and sorted(seen) != sorted(former.splitlines()):
        text = "".join(f"{line}\n" for line in seen)
        PAGE.write_text(page.replace(f"{begin}{former}{end}", f"{begin}{text}{end}"), encoding="utf-8")
    elif not rewrite:
        assert sorted(seen) == sorted(former.splitlines()), f"`pytest -m sample --rewrite` writes {name!r} anew"


def _is_of_worker(line: str) -> bool:
    return _find_rank(line) >= 0


def _find_rank(line: str) -> int:
    """The rank at the beginning of a worker's line; -1 for other lines."""
    found = re.match(r"\[(\d+)", line)
    return -1 if found is None else int(found[1])
