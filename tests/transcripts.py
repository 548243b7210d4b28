"""What the transcripts of both cores have in common: prose, commands, and beneath each, indented, what followed."""

from collections.abc import Callable
from pathlib import Path


def rerun(text: str, run: Callable[[str], list[str]]) -> str:
    """The transcript as its commands make it now; `run` carries out one."""
    story, _, rest = text.partition("\n\n")
    lines = [story, ""]
    for line in rest.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"  {output}" for output in run(line)]
    return "\n".join(lines) + "\n"


def check(path: Path, rerun: Callable[[str], str], *, rewrite: bool) -> None:
    """Compare a transcript with what its commands make now, or write it anew."""
    expected = path.read_text(encoding="utf-8")
    now = rerun(expected)
    if rewrite:
        path.write_text(now, encoding="utf-8")
    else:
        assert now == expected
