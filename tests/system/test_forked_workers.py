"""A forked worker of a real job cannot be distinguished from an executed one, and jobs outlive their forkserver.

What a program finds, and how it ends, is compared in `tests/worker_runtime/startup/test_program.py`, without a job.
"""

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from hvdrun.shim.path import FOLDER
from rendezvous.bootstrap import RUNNING_SIGNAL_OFFSET, STACK_DESCRIPTOR
from tests.system.launcher import Finished, Launcher
from tests.system.tables import rest_nightly

FACTS = Path(__file__).with_name("facts.py").read_text(encoding="utf-8")
SPAWNED = re.compile(r"^hvdrun: \S+ is process (\d+), (.*)$", re.MULTILINE)
FORKED = "forked"


def run_both_ways(
    hvdrun: Launcher, *command: str, size: int = 1, environment: dict[str, str] | None = None
) -> tuple[Finished, Finished]:
    """Run a command with forked and with executed workers, at the same time: how both jobs ended."""
    jobs = [
        (way, hvdrun.start("-np", str(size), "-v", *command, environment=environment, forks=way == FORKED))
        for way in (FORKED, "executed (--no-prefork)")
    ]
    forked, executed = ((way, running.wait()) for way, running in jobs)
    for way, finished in (forked, executed):
        assert [how for _, how in SPAWNED.findall(finished.stderr)] == [way] * size, finished.stderr
        assert finished.returncode == 0, finished.stderr
        assert not [line for line in finished.stderr.splitlines() if line.startswith("[")]
    return forked[1], executed[1]


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        (("python3", "script.py", "a", "b c", "", "--flag=ä"), {"BLANKS": " a b ", "LINES": "a\nb", "ODD": "\udcff"}),
        ((sys.executable, "-m", "package", "a"), {"PYTHONDEVMODE": "1", "PYTHONPATH": "modules:/nowhere"}),
    ],
    ids=["script", "module"],
)
def test_a_program_finds_the_same_environment_forked_and_executed(
    hvdrun: Launcher, command: tuple[str, ...], environment: dict[str, str]
) -> None:
    (hvdrun.directory / "package").mkdir()
    for name in ("script.py", "package/__main__.py"):
        hvdrun.write(name, FACTS)
    forked, executed = (
        json.loads(finished.stdout.removeprefix("[0] "))
        for finished in run_both_ways(hvdrun, *command, environment=environment)
    )
    for facts in (forked, executed):
        assert "answer" in facts["signals"].pop(str(signal.SIGRTMIN + RUNNING_SIGNAL_OFFSET))
    assert {key: value for key, value in forked.items() if value != executed[key]} == {}
    assert forked["cmdline"] == "".join(f"{word}\0" for word in command)
    assert forked["descriptors"] == ["0", "1", str(STACK_DESCRIPTOR), "2"]
    assert "hvdrun.agent" in forked["parent"]
    search = ":".join([str(FOLDER), *filter(None, [environment.get("PYTHONPATH")])])
    assert (environment | {"PYTHONPATH": search}).items() <= forked["environment"].items()


# What torch computes, with how many threads, and by which random numbers; and what is to differ from worker to worker.
TRAINS = """
import json, multiprocessing, os, random, warnings
import numpy, threadpoolctl, torch
import worker_runtime.torch as hvd

warnings.simplefilter("error")
secret = multiprocessing.current_process().authkey.hex()
differing = [torch.initial_seed(), torch.rand(1).item(), numpy.random.rand(), random.random(), secret]
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.rand(64, 1, 8, 8), torch.arange(64) % 10)
losses = []
multiprocessing.set_start_method("fork")  # newer Pythons import this script again in each child process
for images, labels in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, shuffle=True):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
big = torch.ones(600, 600)
losses.append((big @ big).sum().item() + float(numpy.ones((600, 600)).dot(numpy.ones((600, 600))).sum()))
hvd.init()
losses.append(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item())
hvd.shutdown()
pools = [(pool["internal_api"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()]
threads = [torch.get_num_threads(), torch.get_num_interop_threads(), sorted(pools)]
print(json.dumps({"losses": losses, "threads": threads, "parallel": torch.__config__.parallel_info()}))
print("differing", json.dumps(differing))
"""


@pytest.mark.parametrize(("size", "threads"), rest_nightly([(1, None), (2, None), (2, "2")]))
def test_torch_trains_alike_forked_and_executed(hvdrun: Launcher, size: int, threads: str | None) -> None:
    hvdrun.write("script.py", TRAINS)
    environment = {} if threads is None else {"OMP_NUM_THREADS": threads}
    reported: list[dict[str, list[str]]] = []
    for finished in run_both_ways(hvdrun, "python", "script.py", size=size, environment=environment):
        lines = [line.partition("] ")[2] for line in sorted(finished.stdout.splitlines())]
        reported.append({kind: [line for line in lines if line.startswith(kind)] for kind in ("{", "differing ")})
    forked, executed = reported
    assert len(forked["{"]) == size
    assert forked["{"] == executed["{"]
    texts = [line.removeprefix("differing ") for way in reported for line in way["differing "]]
    drawn = list(zip(*map(json.loads, texts), strict=True))
    assert [len(set(values)) for values in drawn] == [2 * size] * 5


# The forkserver is killed by its own preload: at its start, or right after it has forked so many workers but one.
KILLED = """
import os, sys
if "worker_runtime.startup.forkserver" in sys.orig_argv:
    forks, own = [], os.getpid()
    def count():
        forks.append(None)
        if os.getpid() == own and len(forks) == {forks}:
            os.kill(own, 9)
    os.register_at_fork(after_in_parent=count)
    if {forks} == 0:
        os.kill(own, 9)
"""


@pytest.mark.parametrize("forks", rest_nightly([3, 0, 1]))
def test_a_killed_forkserver_costs_no_worker_and_starts_no_worker_twice(hvdrun: Launcher, forks: int) -> None:
    (hvdrun.directory / "site").mkdir()
    hvdrun.write("site/sitecustomize.py", KILLED.format(forks=forks))
    hvdrun.write(
        "script.py",
        "import os, sys; rank = os.environ['HOROVOD_RANK']; print(rank); print(rank, file=open('ran', 'a'))\n"
        "sys.exit(3 if rank == '3' else 0)",
    )
    finished = hvdrun("-np", "4", "-v", "python", "script.py", environment={"PYTHONPATH": "site"}, forks=True)
    assert finished.returncode == 3
    way = FORKED if forks > 1 else "executed (the forkserver ended)"  # another forkserver forks two as well
    assert [how for _, how in SPAWNED.findall(finished.stderr)] == [way] * 4
    assert "rank 3 on localhost (slot 3) failed first" in finished.stderr
    ran = (hvdrun.directory / "ran").read_text(encoding="utf-8").split()
    assert "3" in ran
    assert len(ran) == len(set(ran))
