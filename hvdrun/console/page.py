"""The page that hvdrun prints after a job has failed: the first cause, and what to do."""

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from hvdrun.console.lines import begins_traceback, ends_traceback, strip_margin
from hvdrun.version import __version__
from rendezvous.core.model import Worker
from rendezvous.core.outcome import describe_ranks, describe_returncode, find_signal

_MINUTE, _HOUR = 60, 3600

# Escape sequences (colours, cursor movements, titles), then all other control characters but the tab.
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\].*?(?:\x07|\x1b\\)|\x1b.?|[\x00-\x08\x0a-\x1f\x7f-\x9f]")

_PLACE = re.compile(rb'\s*File "(?P<file>[^"]+)", line (?P<line>\d+)')  # in Python's traceback
_NO_RUNTIME = "ModuleNotFoundError: No module named 'worker_runtime'"  # the last line of Python's traceback
_NO_RANK = "environment variable RANK expected, but not set"  # in an error of torch.distributed
_NO_SPACE = re.compile(r"^OSError: \[Errno 28\]|No space left on device|^OSError: \[Errno 122\]|Disk quota exceeded")
_NO_MODULE = re.compile(r"^(?:ModuleNotFoundError: No module named '[\w.]+'|ImportError: .+)")
ALONE = (
    "A worker that is started alone, later than the others, has no RANK: with --max-restarts all workers are started "
    "again together."
)
_HINTS = {
    signal.SIGKILL: "Nothing in hvdrun sent this signal: most often the kernel does when memory runs out "
    "(look for 'Out of memory' in dmesg, or at the container's memory limit).",
    signal.SIGSEGV: "Native code read or wrote where it must not; faulthandler's lines show where Python was.",
    signal.SIGBUS: "Most often shared memory is full (look at df /dev/shm; in a container raise --shm-size).",
    signal.SIGABRT: "Native code gave up on itself; its last lines usually say why.",
    signal.SIGTERM: "Nothing in hvdrun sent this signal: the script itself or another process did.",
    signal.SIGXCPU: "It used up a limit of processor time: ulimit -t, or the scheduler's.",
    signal.SIGILL: "A library was built for another processor than this host's.",
}


class Tone(Enum):
    """How a line of the page is shown on a terminal; the values are parameters of SGR."""

    HEADLINE = "1;31"  # bold, red
    TEXT = ""
    QUOTE = "2"  # dim
    HINT = "33"  # yellow


@dataclass(frozen=True, slots=True)
class Page:
    """Why a job failed.

    rank, worker: the one that failed first; None if no single worker did.
    returncode: of that worker, as waitpid reports it: its exit code, or -n for signal n.
    reason: one sentence, if the numbers do not say enough; else "".
    culprit: what that worker failed because of, as a subject, if it did not fail by itself; the reason says how.
    evidence: what the kernel of its host knows of its end, in whole sentences.
    seconds: from the job's start to the failure.
    last_lines: the last output of that worker.
    ended_ranks: the workers that were ended because of it.
    notes: more sentences, each a line.
    has_comparable_hosts: see `JobSpec`.
    """

    reason: str = ""
    culprit: str = ""
    evidence: str = ""
    rank: int | None = None
    worker: Worker | None = None
    returncode: int | None = None
    seconds: float | None = None
    last_lines: tuple[str, ...] = ()
    ended_ranks: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    has_comparable_hosts: bool = False


def render_page(page: Page, *, coloured: bool = False) -> str:
    """The page in text, ending with a newline; lines are left to the terminal to wrap.

    Message: rank RANK on HOST (slot SLOT) failed first after TIME: exit code CODE
    Cause: The script of that rank raised an exception, or ended with this code.
    Remedy: See its last lines, below this sentence.

    Message: rank RANK on HOST (slot SLOT) failed first after TIME: killed by SIGKILL (signal 9)
    Cause: The next line has it: the kernel killed the worker because memory ran out, or another process did. Without
        the kernel's count, memory is the most frequent cause.
    Remedy: For memory, use smaller batches, or fewer workers on that host, or raise the container's limit. Without the
        count, look for `Out of memory` in `dmesg`.

    Message: rank RANK on HOST (slot SLOT) failed first after TIME: killed by SIGTERM (signal 15)
    Cause: Another process sent the worker this signal.
    Remedy: See the log of the scheduler or container.

    Message: rank RANK on HOST (slot SLOT) is the first cause after TIME: HOW
    Cause: Other ranks needed this one, which had ended with 0 or did not come.
    Remedy: Make the same calls on all ranks; see where the script of that rank ends or waits.

    Message: the sequencer on HOST, which orders the workers' collectives, is the first cause after TIME: HOW
    Cause: That process was killed, by somebody or because memory ran out.
    Remedy: Look for `Out of memory` in `dmesg` on that host.

    Message: the network between HOST and HOST is the first cause after TIME: HOW
    Cause: A worker has lost its connection to the sequencer, though both hosts reach hvdrun.
    Remedy: Check the network between these hosts.

    Message: rank RANK on HOST (slot SLOT) failed first after TIME: killed by SIGBUS (signal 7)
    Cause: Most often shared memory is full.
    Remedy: See `df /dev/shm`. Give a container more shared memory.

    Message: A worker that is started alone, later than the others, has no RANK: with --max-restarts all workers are
        started again together.
    Cause: The script uses torch.distributed, and lost a worker of an elastic job before rank 0 had opened its port.
    Remedy: Start it with `--max-restarts`.

    Message: rank RANK on HOST (slot SLOT) failed first after TIME: killed by SIGSEGV (signal 11)
    Message: rank RANK on HOST (slot SLOT) failed first after TIME: killed by SIGABRT (signal 6)
    Cause: Native code crashed.
    Remedy: The worker's last lines show where Python was.
    """
    lines = ((text, tone.value if coloured else "") for text, tone in compose_page(page))
    return "".join(f"\x1b[{style}m{text}\x1b[0m\n" if style else f"{text}\n" for text, style in lines)


def render_annotation(page: Page) -> str:
    """The page as a command of GitHub Actions' log, which shows it above the run, and beside the line that failed."""
    text = _encode(render_page(page).removeprefix("hvdrun: ").rstrip("\n"), "%\r\n")
    found = _find_place([line.encode() for line in page.last_lines])
    place = "" if found is None else f"file={_encode(found['file'].decode(), '%:,')},line={found['line'].decode()},"
    return f"::error {place}title=hvdrun::{text}\n"


def _find_place(lines: Sequence[bytes]) -> re.Match[bytes] | None:
    """The last frame of the last traceback: the lines after it may name places, too."""
    begin = next((number for number in reversed(range(len(lines))) if begins_traceback(lines[number])), None)
    if begin is not None:
        lines = lines[begin + 1 :]
    place = None
    for text in map(strip_margin, lines):
        place = _PLACE.match(text) or place
        if begin is not None and ends_traceback(text):
            break
    return place


def _encode(text: str, characters: str) -> str:
    """The text with these characters written as GitHub Actions reads them; % comes first."""
    for character in characters:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def compose_page(page: Page) -> Iterator[tuple[str, Tone]]:
    """The page's lines, the same for a terminal and a file."""
    yield f"hvdrun: {_head(page)}", Tone.HEADLINE
    if page.culprit:
        yield f"  R{_name_worker(page)[1:]} failed because of that{_describe_end(page)}.", Tone.TEXT
    elif page.reason and page.rank is not None:
        yield f"  {strip_controls(page.reason)}", Tone.TEXT

    hint = page.evidence or _find_hint(page)
    if hint:
        yield f"  {hint}", Tone.HINT
    if page.last_lines:
        yield "  It wrote last:", Tone.TEXT
        for line in page.last_lines:
            yield f"  | {strip_controls(line)}".rstrip(), Tone.QUOTE

    if page.ended_ranks:
        yield f"  hvdrun then stopped {describe_ranks(page.ended_ranks)}.", Tone.TEXT
    for note in page.notes:
        yield f"  {strip_controls(note)}", Tone.TEXT


def describe_seconds(seconds: float) -> str:
    """A duration in words: `0.3 s`, `2 min 5 s`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{seconds:.1f} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def strip_controls(text: str) -> str:
    """Text without escape sequences and control characters, which would act on the terminal."""
    return _CONTROLS.sub("", text)


def _head(page: Page) -> str:
    """The first line: which rank failed, when and how."""
    when = "" if page.seconds is None else f" after {describe_seconds(page.seconds)}"
    if page.rank is None:
        return (strip_controls(page.reason).rstrip(".") or "the job failed") + (f",{when}." if when else ".")
    if page.culprit:
        are = "are" if page.culprit.startswith("ranks ") else "is"
        return f"{page.culprit} {are} the first cause{when}: {strip_controls(page.reason).rstrip('.')}"
    return f"{_name_worker(page)} failed first{when}{_describe_end(page)}"


def _name_worker(page: Page) -> str:
    where = "" if page.worker is None else f" on {page.worker.slot.host} (slot {page.worker.slot.index})"
    return f"rank {page.rank}{where}"


def _describe_end(page: Page) -> str:
    return "" if page.returncode is None else f": {describe_returncode(page.returncode)}"


def _find_hint(page: Page) -> str | None:
    if _NO_RUNTIME in page.last_lines:
        where = "" if page.worker is None else f" on {page.worker.slot.host}"
        return (
            f"The Python that runs the script{where} has no hvdrun: install there the wheel or the checkout of version "
            f"{__version__} (python -m pip install FILE), or start the script with a Python that has it."
        )
    if any(_NO_RANK in line for line in page.last_lines):
        return ALONE

    host = "its host" if page.worker is None else page.worker.slot.host
    if any(map(_NO_SPACE.search, page.last_lines)):
        return f"A disk of {host} is full, or a quota is used up (look at df -h and df -i there)."
    if any(map(_NO_MODULE.match, page.last_lines[-1:])):
        doctor = ""
        if page.has_comparable_hosts:
            doctor = ", and hvdrun doctor -H HOSTS whether Python or torch differ between hosts"
        return f"An import failed on {host}: --dry-run shows which Python runs the script{doctor}."

    number = None
    if page.returncode is not None:
        number = find_signal(page.returncode)
    return next((hint for known, hint in _HINTS.items() if known == number), None)
