"""The kinds of failure of `docs/causes.py`: the script to which they happen, and whether hvdrun names the culprit."""

import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest

from hvdrun.agent.memory_kills import MemoryKills
from tests.house.sources import ROOT
from tests.system.launcher import Finished

TABLE = runpy.run_path(str(ROOT / "docs" / "causes.py"))
ONE, TWO, PLACES = TABLE["ONE"], TABLE["TWO"], TABLE["PLACES"]
LIMIT_SECONDS = 60.0
_OF_COUNT = "The kernel did not kill it for memory"  # where it counts
STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
START = ("--start-timeout", "5s")  # of the way "hang"
NAN = ("--nan-is-error",)  # of the way "nan"
_BLAMES = re.compile(
    r"^hvdrun: (?!the sequencer on \S+, which orders the workers' collectives, is gone: )", re.MULTILINE
)

# The rank of the second word meets the fate of the first when there is a file "go"; all end when there is a file "end".
SCRIPT = """
import ctypes, os, pathlib, sys, threading, time

fate, rank = sys.argv[1], sys.argv[2]
is_hit = os.environ["HOROVOD_RANK"] == rank

def load_batch():
    raise ValueError("no such luck")

def read_memory():
    ctypes.string_at(0)

def give_up():
    os.abort()

def use_memory():
    kept = []
    while True:
        kept.append(b"x" * (32 << 20))

def fill_disk():
    with open("/dev/full", "w") as file:
        file.write("x" * 100000)

def take_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def await_data():
    time.sleep(600)

FATES = {
    "raise": load_batch,
    "exit": lambda: sys.exit(3),
    "leave": lambda: sys.exit(0),
    "crash": read_memory,
    "abort": give_up,
    "memory": use_memory,
    "full": fill_disk,
    "wait": take_lock,
}
if fate == "hang" and is_hit:
    await_data()
if fate == "import":
    sys.path.insert(0, "/tmp/modules")
    import of_one_host

import torch
import worker_runtime.torch as hvd

hvd.init()
hvd.allreduce(torch.ones(1), name="gradient")
os.write(1, b"trains as %d\\n" % os.getpid())
if fate == "nan":
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
while fate == "nan":
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).sum()
    (loss * float("nan") if is_hit and os.path.exists("go") else loss).backward()
    optimizer.step()
while not hvd.allreduce(torch.tensor([float(os.path.exists("end"))]), name="gradient").item():
    if is_hit and os.path.exists("go") and fate in FATES:
        FATES[fate]()
    time.sleep(0.01)
"""


class Score:
    """For how many kinds of failure hvdrun has named the culprit in this run."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._right: dict[str, dict[str, bool]] = {}  # by kind and way

    def note(self, kind: str, way: str, *, is_right: bool) -> None:
        """Record a way, before it is tried and afterwards."""
        self._right.setdefault(kind, {})[way] = is_right

    def describe(self) -> str:
        """The score in a line: a kind is right if all its ways are."""
        kinds = [
            kind for kind in TABLE["KINDS"] if not kind.ways or any(self._place in way.places for way in kind.ways)
        ]
        right = sum(all(ways.values()) for ways in self._right.values())
        tried = "" if len(self._right) == len(kinds) else f" ({len(self._right)} were tried)"
        return f"first causes on {self._place}: the right culprit of {right} of {len(kinds)} kinds{tried}"


def keep_score(request: pytest.FixtureRequest, place: str) -> Iterator[Score]:
    """A score that is printed in the end."""
    score = Score(place)
    yield score
    plugins = request.config.pluginmanager
    reporter, capture = plugins.getplugin("terminalreporter"), plugins.getplugin("capturemanager")
    if reporter is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            reporter.write_line(f"\n{score.describe()}")


def list_cells(place: str, often: frozenset[str] = frozenset()) -> list[Any]:
    """A test's parameters: the kinds and ways of a place, marked `nightly` but for those of these keys."""
    return [
        pytest.param(kind, way, id=way.key, marks=() if way.key in often else pytest.mark.nightly)
        for kind, way in TABLE["list_ways"](place)
    ]


def check_cause(kind: Any, way: Any, finished: Finished, place: str) -> None:
    """Compare what hvdrun has said with the table."""
    page = "".join(finished.stderr[found.start() :] for found in [*_BLAMES.finditer(finished.stderr)][:1])
    if not MemoryKills().has_count:
        way = way._replace(words=tuple(word for word in way.words if word != _OF_COUNT))
    wanted = [text.format(**PLACES[place]) for text in (way.culprit, *way.words)]
    where = finished.stderr if way.key == "hang" else page
    missing = [text for text in wanted if text not in where]
    is_right = not missing and finished.returncode == way.code and bool(page) == bool(way.culprit)
    assert is_right, f"{kind.what}, {way.key}: missing {missing}; exit code {finished.returncode}\n{finished.stderr}"
    assert "Extension modules" not in page
