"""`python docs/causes.py`: writes the table of first causes of docs/operating/died.md.

With `--check` it writes nothing, and exits with 1 where the page is out of date. The tests of first causes, in
`tests/system` and `tests/system/hosts`, inject each way of KINDS into a real job, and compare what hvdrun says.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent / "operating" / "died.md"
START, END = "<!-- causes -->", "<!-- /causes -->"
ONE, TWO = "one host", "two hosts"
BOTH = (ONE, TWO)

# The rank to which it happens is 1 of 3 on one host, and on two hosts 2, the only one of host2.
PLACES = {
    ONE: {"rank": "1", "host": "localhost", "slot": "1", "first": "localhost"},
    TWO: {"rank": "2", "host": "host2", "slot": "0", "first": "host1"},
}
FAILED = "rank {rank} on {host} (slot {slot}) failed first after "
CAUSE = "rank {rank} on {host} (slot {slot}) is the first cause after "
NAMED = "rank {rank} on {host} (slot {slot}) "  # one or the other: it depends on which rank reports first
LOST = "host {host} was lost: "


class Way(NamedTuple):
    """One way in which it happens.

    key: what the tests inject.
    culprit: what hvdrun names, with the words of PLACES; "" where nothing is to be named.
    words: what stands beside it.
    code: of hvdrun, as its parent sees it.
    places: where it can happen.
    """

    key: str
    culprit: str
    words: tuple[str, ...] = ()
    code: int = 1
    places: tuple[str, ...] = BOTH


class Kind(NamedTuple):
    """A kind of failure.

    what: happens. named, beside: what hvdrun names, and what stands beside it, as the page says it.
    """

    what: str
    named: str
    beside: str
    ways: tuple[Way, ...]


KINDS = (
    Kind(
        "the script raises an exception",
        "its rank",
        "type, message, and the script's own frames",
        (Way("raise", FAILED, (": exit code 1\n", "| ValueError: no such luck", ", in load_batch\n")),),
    ),
    Kind("the script ends with an exit code", "its rank", "the code", (Way("exit", FAILED, (": exit code 3\n",), 3),)),
    Kind(
        "a rank ends with 0, and the others need it",
        "the rank that has ended",
        "where it called `sys.exit()`, which operation needs it, and who failed because of that",
        (Way("leave", CAUSE, ("rank {rank} ended with 0 at train.py:", "needs it\n", " failed because of that: ")),),
    ),
    Kind(
        "native code crashes, or aborts",
        "its rank",
        "the signal, and the Python stack of its thread",
        (
            Way("crash", FAILED, ("SIGSEGV (signal 11)", "| Current thread", " in read_memory\n"), 139),
            Way("abort", FAILED, ("SIGABRT (signal 6)", "| Current thread", " in give_up\n"), 134),
        ),
    ),
    Kind(
        "the kernel kills a worker because memory ran out",
        "its rank",
        'the count of its memory cgroup; without one, its resident size, and "probably"',
        (Way("memory", FAILED, ("SIGKILL (signal 9)", "The kernel killed it because memory ran out: oom_kill"), 137),),
    ),
    Kind(
        "somebody kills a worker",
        "its rank",
        "SIGKILL, and that the kernel did not kill it for memory",
        (Way("kill", FAILED, ("SIGKILL (signal 9)", "The kernel did not kill it for memory"), 137),),
    ),
    Kind(
        "somebody sends a worker SIGTERM",
        "its rank",
        "SIGTERM, and that hvdrun did not send it",
        (Way("terminate", FAILED, ("SIGTERM (signal 15)", "Nothing in hvdrun sent this signal"), 143),),
    ),
    Kind(
        "an agent is killed",
        "its host",
        "that its agent was killed",
        (
            Way("agent", LOST, ("its agent ended with SIGKILL (signal 9)",), 75, (ONE,)),
            Way("agent", LOST, ("its agent was killed by a signal",), 75, (TWO,)),
        ),
    ),
    Kind("a watchdog is killed", "nobody: the job goes on", "", (Way("watchdog", "", code=0),)),
    Kind("a forkserver is killed", "nobody: the job goes on", "", (Way("forkserver", "", code=0),)),
    Kind(
        "the sequencer is killed",
        "the sequencer, and its host",
        "the signal, and who failed because of that",
        (
            Way(
                "sequencer",
                "the sequencer on {first}, which orders the workers' collectives, is the first cause after ",
                ("it ended with SIGKILL (signal 9)\n", " failed because of that: "),
            ),
        ),
    ),
    Kind(
        "a host loses its power",
        "the host",
        "for how long it was silent",
        (Way("power", LOST, ("its agent was silent for 2 s (--lease)",), 75, (TWO,)),),
    ),
    Kind(
        "the network is cut, one way or both, to hvdrun or between two hosts",
        "the host; or the network between the two",
        "for how long it was silent, or which report had no answer; or whose connection broke",
        (
            Way("cut", LOST, ("its agent was silent for 2 s (--lease)",), 75, (TWO,)),
            Way("cut in", LOST, ("for 2 s (--l",), 75, (TWO,)),
            Way("cut out", LOST, ("its agent was silent for 2 s (--lease)",), 75, (TWO,)),
            Way("part", "the network between host2 and host1 is the first cause after ", ("was cut off",), 1, (TWO,)),
        ),
    ),
    Kind(
        "an ssh connection is dropped",
        "the host",
        "that its connection was lost",
        (Way("ssh", LOST, ("its ssh connection was lost",), 75, (TWO,)),),
    ),
    Kind(
        "a rank does not come to `hvd.init()`",
        "the rank, and its host",
        "its Python stack",
        (Way("hang", "rank {rank} ({host}:{slot}) did not; its Python stack", (" in await_data\n",), 124),),
    ),
    Kind(
        "an import fails on one host only",
        "its rank, and the host",
        "the module, and how to compare the hosts",
        (
            Way(
                "import",
                FAILED,
                (
                    "No module named 'of_one_host'",
                    "An import failed on host2: --dry-run shows which Python runs the script",
                ),
                1,
                (TWO,),
            ),
        ),
    ),
    Kind(
        "a disk is full",
        "the rank that writes",
        "the error, and the host",
        (Way("full", FAILED, ("No space left on device", "A disk of {host} is full"), 1),),
    ),
    Kind(
        "a rank is elsewhere while the others wait (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)",
        "the rank that is awaited",
        "the operation, the limit, and who failed because of that",
        (Way("wait", CAUSE, ("allreduce 'gradient' waited for rank {rank} for more than 2 seconds",), 1),),
    ),
    Kind(
        "a gradient is not finite (--nan-is-error)",
        "the rank whose own gradient it is",
        "the parameter, and the step",
        (Way("nan", NAMED, ("rank {rank}'s gradient of bias is not finite (NaN) in step ",)),),
    ),
    Kind(
        "hvdrun is stopped for longer than its hosts wait, or killed",
        "hvdrun, and for how long it did not run; killed, it says nothing, and the job ends everywhere",
        "which host gave it up",
        (
            Way("stop", "", code=0, places=(ONE,)),
            Way(
                "stop",
                "hvdrun did not run for ",
                (" was lost: its agent ended", "no report was acknowledged"),
                75,
                (TWO,),
            ),
            Way("end", "", code=-9),
        ),
    ),
    Kind(
        "the clock of hvdrun's machine jumps by an hour, and then a worker is killed",
        "the rank of that worker",
        "the time since the start, without the hour",
        (Way("clock", FAILED, ("SIGKILL (signal 9)",), 137),),
    ),
)


def list_ways(place: str) -> list[tuple[Kind, Way]]:
    """The ways of all kinds that can happen there."""
    return [(kind, way) for kind in KINDS for way in kind.ways if place in way.places]


def render() -> Iterator[str]:
    """The lines of the table."""
    yield "| what happens | what hvdrun names | what stands beside it |"
    yield "|---|---|---|"
    for kind in KINDS:
        yield f"| {kind.what} | {kind.named} | {kind.beside} |"


def replace_table(page: str) -> str:
    """The page with the present table.

    Raises:
        ValueError: the page has no markers.
    """
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"{PAGE} needs the markers {START} and {END}")
    return f"{before}{START}\n" + "\n".join(render()) + f"\n{END}{after}"


def main() -> int:
    """Write the page, or check it."""
    page = PAGE.read_text(encoding="utf-8")
    new = replace_table(page)
    if "--check" in sys.argv[1:]:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
