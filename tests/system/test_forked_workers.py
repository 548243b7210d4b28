"""A forked worker of a real job cannot be told from an executed one, and jobs outlive their forkserver.

What a program finds, and how it ends, is compared in `tests/worker_runtime/test_program.py`, without a job.
"""

import json
import re
import signal
import sys
import venv
from pathlib import Path

import pytest

from hvdrun.horovod_path import FOLDER
from tests.system.launcher import Finished, Launcher
from tests.system.roles import kill
from tests.system.scripts import WAIT_FOR
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
def test_a_program_finds_the_same(hvdrun: Launcher, command: tuple[str, ...], environment: dict[str, str]) -> None:
    (hvdrun.directory / "package").mkdir()
    for name in ("script.py", "package/__main__.py"):
        hvdrun.write(name, FACTS)
    forked, executed = (
        json.loads(finished.stdout.removeprefix("[0] "))
        for finished in run_both_ways(hvdrun, *command, environment=environment)
    )
    assert {key: value for key, value in forked.items() if value != executed[key]} == {}
    assert forked["cmdline"] == "".join(f"{word}\0" for word in command)
    assert forked["descriptors"] == ["0", "1", "2"]
    assert "hvdrun.agent" in forked["parent"]
    search = ":".join([str(FOLDER), *filter(None, [environment.get("PYTHONPATH")])])
    assert (environment | {"PYTHONPATH": search}).items() <= forked["environment"].items()


SITE = (
    "import os, sys\nif 'worker_runtime.forkserver' in sys.orig_argv: {}\n"  # a sitecustomize, of the forkserver alone
)


@pytest.mark.parametrize(
    ("command", "site", "reason"),
    [
        (("python", "-O", "script.py"), "pass", "not a plain Python command"),
        (("python", "script.py"), "kept = open('/dev/zero')", "something that is imported here keeps /dev/zero open"),
        (("python", "script.py"), "os.write(2, b'it dies'); os._exit(0)", "the forkserver ended: it dies"),
    ],
    ids=["command", "import", "forkserver"],
)
def test_what_cannot_be_forked_is_executed_with_the_reason(
    hvdrun: Launcher, command: tuple[str, ...], site: str, reason: str
) -> None:
    hvdrun.write("script.py", "import sys; print(sys.flags.optimize)\n")
    (hvdrun.directory / "site").mkdir()
    hvdrun.write("site/sitecustomize.py", SITE.format(site))
    finished = hvdrun("-np", "1", "-v", *command, environment={"PYTHONPATH": "site"}, forks=True)
    assert [how for _, how in SPAWNED.findall(finished.stderr)] == [f"executed ({reason})"]
    assert (finished.returncode, finished.stdout) == (0, f"[0] {int('-O' in command)}\n")


@pytest.mark.nightly
def test_an_interpreter_without_our_runtime_is_used_nevertheless(hvdrun: Launcher) -> None:
    """A virtual environment without any package stands for it."""
    other = hvdrun.directory / "other"
    venv.create(other, symlinks=True)
    hvdrun.write("script.py", "import sys; print(sys.prefix)")
    command = (other / "bin/python", "script.py")
    finished = hvdrun("-np", "1", "-v", *command, environment={"PYTHONPATH": ""}, forks=True)
    assert "executed (the forkserver ended: ModuleNotFoundError: No module named 'worker_runtime')" in finished.stderr
    assert finished.stdout == f"[0] {other}\n"


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
def test_torch_trains_alike(hvdrun: Launcher, size: int, threads: str | None) -> None:
    hvdrun.write("script.py", TRAINS)
    environment = {} if threads is None else {"OMP_NUM_THREADS": threads}
    told: list[dict[str, list[str]]] = []
    for finished in run_both_ways(hvdrun, "python", "script.py", size=size, environment=environment):
        lines = [line.partition("] ")[2] for line in sorted(finished.stdout.splitlines())]
        told.append({kind: [line for line in lines if line.startswith(kind)] for kind in ("{", "differing ")})
    forked, executed = told
    assert len(forked["{"]) == size
    assert forked["{"] == executed["{"]
    texts = [line.removeprefix("differing ") for way in told for line in way["differing "]]
    drawn = list(zip(*map(json.loads, texts), strict=True))
    assert [len(set(values)) for values in drawn] == [2 * size] * 5


def test_sixteen_workers_are_forked_at_once(hvdrun: Launcher) -> None:
    hvdrun.write("script.py", "import os; print(os.getsid(0) == os.getpid(), os.environ['HOROVOD_RANK'])")
    finished = hvdrun("-np", "16", "-v", "python", "script.py", forks=True)
    spawned = SPAWNED.findall(finished.stderr)
    assert finished.returncode == 0
    assert {how for _, how in spawned} == {FORKED}
    assert len({pid for pid, _ in spawned}) == 16
    assert sorted(finished.stdout.splitlines()) == sorted(f"[{rank}] True {rank}" for rank in range(16))


# The forkserver is killed by its own preload: at its start, or right after it has forked so many workers but one.
KILLED = """
import os, sys
if "worker_runtime.forkserver" in sys.orig_argv:
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
def test_a_forkserver_that_is_killed_costs_no_worker_and_makes_none_twice(hvdrun: Launcher, forks: int) -> None:
    (hvdrun.directory / "site").mkdir()
    hvdrun.write("site/sitecustomize.py", KILLED.format(forks=forks))
    hvdrun.write(
        "script.py",
        "import os, sys; rank = os.environ['HOROVOD_RANK']; print(rank); print(rank, file=open('ran', 'a'))\n"
        "sys.exit(3 if rank == '3' else 0)",
    )
    finished = hvdrun("-np", "4", "-v", "python", "script.py", environment={"PYTHONPATH": "site"}, forks=True)
    assert finished.returncode == 3
    assert sorted(how for _, how in SPAWNED.findall(finished.stderr)) == [
        *["executed (the forkserver ended)"] * (4 - max(0, forks - 1)),
        *[FORKED] * max(0, forks - 1),
    ]
    assert "rank 3 on localhost (slot 3) failed first" in finished.stderr
    ran = (hvdrun.directory / "ran").read_text(encoding="utf-8").split()
    assert "3" in ran
    assert len(ran) == len(set(ran))


# Rank 1 ends as the test says when it is told to; the other waits for it.
ENDS = f"""{WAIT_FOR}
print("alive", flush=True)
wait_for("go")
if os.environ["HOROVOD_RANK"] == "1":
    {{how}}
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("how", "code", "told"),
    rest_nightly([("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV"), ("sys.exit(9)", 9, "exit code 9")]),
)
def test_workers_outlive_the_forkserver_and_end_with_their_true_codes(
    hvdrun: Launcher, how: str, code: int, told: str
) -> None:
    hvdrun.write("script.py", ENDS.format(how=how))
    running = hvdrun.start("-np", "2", "python", "script.py", forks=True)
    running.stdout.wait_for(r"(\[[01]\] alive\n){2}", 60)
    (forkserver,) = hvdrun.processes("worker_runtime.forkserver")
    kill(forkserver.pid, signal.SIGKILL)
    hvdrun.write("go", "")
    finished = running.wait()
    assert finished.returncode == code
    assert told in finished.stderr
