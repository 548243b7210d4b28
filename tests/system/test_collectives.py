"""Collectives in real jobs: what they cost while nothing happens, and what people read when something is wrong.

`make soak` raises the cycles of init() and shutdown() (HVDRUN_SOAK_CYCLES) and the seconds in which nothing happens
(HVDRUN_SOAK_IDLE_SECONDS).
"""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.system.launcher import Launcher, Running
from tests.system.roles import find_sequencers, kill, read_state
from tests.system.scripts import WAIT_FOR
from tests.system.tables import rest_nightly
from tests.waiting import wait_until

IDLE_SECONDS = float(os.environ.get("HVDRUN_SOAK_IDLE_SECONDS", "3"))
CYCLES = int(os.environ.get("HVDRUN_SOAK_CYCLES", "4"))
MOST_WAKE_UPS = 8  # of a process in a second: its timers have two, and a sleep may be long; whatever polls has many
MOST_MEMORY_KIB = 6 * 1024  # that glibc takes once, whenever a thread begins to allocate
MOST_GROWTH_KIB = 10  # for each init() and shutdown()
BEGINS = f"""{WAIT_FOR}
import torch
import worker_runtime.torch as hvd

hvd.init()
hvd.barrier()
"""


def start(hvdrun: Launcher, script: str, *options: str, size: int = 2) -> Running:
    hvdrun.write("train.py", BEGINS + script)
    return hvdrun.start("-np", str(size), *options, "python", "train.py")


def count_wake_ups(pid: int) -> int:
    """How often the threads of a process have gone to sleep, and so were awake; a busy machine changes nothing here.

    Gloo's own loop is left out: it looks for work a hundred times a second.
    """
    statuses = [(task / "status").read_text(encoding="ascii") for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(
        int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", status, re.MULTILINE)[0])
        for status in statuses
        if not status.startswith("Name:\tgloo_tcp_loop\n")
    )


@pytest.mark.timeout(120 + IDLE_SECONDS)
def test_an_idle_job_does_not_poll(hvdrun: Launcher) -> None:
    running = start(
        hvdrun,
        """
some = hvd.add_process_set([0])
handles = [hvd.allreduce_async(torch.ones(count), name=str(count)) for count in (3, 100_000)]
for handle in handles:
    hvd.synchronize(handle)
hvd.broadcast_object("x")
print("idle", os.getpid(), flush=True)
open("go").read()
hvd.barrier()
""",
    )
    os.mkfifo(hvdrun.directory / "go")
    pids = [int(running.stdout.wait_for(rf"^\[{rank}\] idle (\d+)$", 60)[1]) for rank in range(2)]
    pids += find_sequencers(hvdrun)
    assert len(pids) == 3
    wait_until(lambda: all(read_state(pid) == "S" for pid in pids))
    time.sleep(0.5)  # until their other threads sleep too, which no event shows
    before = [count_wake_ups(pid) for pid in pids]
    time.sleep(IDLE_SECONDS)  # no event shows that nothing happens
    wake_ups = [count_wake_ups(pid) - earlier for pid, earlier in zip(pids, before, strict=True)]
    with (hvdrun.directory / "go").open("w"), (hvdrun.directory / "go").open("w"):
        pass
    running.wait()
    assert max(wake_ups) <= MOST_WAKE_UPS * IDLE_SECONDS, wake_ups


@pytest.mark.timeout(120 + CYCLES)
def test_init_and_shutdown_many_times_leave_nothing(hvdrun: Launcher) -> None:
    running = start(
        hvdrun,
        f"""
import gc, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and newer warn of a fork beside threads

def count():
    gc.collect()
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["Threads"]), len(os.listdir("/proc/self/fd")), int(status["VmRSS"].split()[0])

counts = []
for cycle in range({CYCLES} + 5):
    hvd.allreduce(torch.ones(100_000))
    pair = hvd.add_process_set([0])
    pending = hvd.allreduce_async(torch.ones(3), name="pending") if cycle % 2 else None
    child = os.fork()  # gRPC's own handlers for fork() now and then hang in between
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    hvd.shutdown()
    counts.append(count())
    hvd.init()
early, late = counts[4], counts[-1]
print("threads", late[0] - early[0], "descriptors", late[1] - early[1], "KiB", late[2] - early[2], flush=True)
""",
    )
    finished = running.wait(100 + CYCLES)
    assert (finished.returncode, finished.stderr) == (0, "")
    found = re.findall(r"threads (-?\d+) descriptors (-?\d+) KiB (-?\d+)", finished.stdout)
    assert len(found) == 2
    for threads, descriptors, kibibytes in found:
        assert max(int(threads), int(descriptors)) <= 0  # fewer, where something has ended since
        assert int(kibibytes) < MOST_MEMORY_KIB + MOST_GROWTH_KIB * CYCLES


@pytest.mark.nightly
def test_the_stall_limit_ends_the_waiting(hvdrun: Launcher) -> None:
    running = start(
        hvdrun,
        """
if hvd.rank() == 0:
    handles = [hvd.allreduce_async(torch.ones(1), name=name) for name in ("loss", "accuracy")]
    for handle in handles:
        hvd.synchronize(handle)
time.sleep(600)
""",
        *("-x", "HOROVOD_STALL_CHECK_TIME_SECONDS=1", "-x", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=2"),
    )
    finished = running.wait()
    assert finished.returncode == 1
    sentence = (
        "allreduce 'loss' failed on rank 0: allreduce 'loss' and 1 more waited for rank 1 for more than 2 seconds, "
        "the stall limit. Horovod has been shut down."
    )
    assert sentence in finished.stderr


@pytest.mark.parametrize("both", rest_nightly([False, True]))
def test_a_job_exits_with_0_though_no_thread_waits_for_its_handles(hvdrun: Launcher, *, both: bool) -> None:
    running = start(
        hvdrun,
        f"""
if {both} or hvd.rank() == 0:
    kept = [hvd.allreduce_async(torch.ones(count), name=str(count)) for count in (3, 10_000_000)]
    kept += [hvd.allgather_async(torch.ones(3)), hvd.allreduce_async(torch.ones(1), name=f"of rank {{hvd.rank()}}")]
print("ends", flush=True)
""",
    )
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.nightly
def test_the_programs_own_default_group_works_beside(hvdrun: Launcher) -> None:
    running = start(
        hvdrun,
        """
import torch.distributed as dist
dist.init_process_group("gloo")
assert dist.get_rank() == hvd.rank() == int(os.environ["RANK"]) and int(os.environ["LOCAL_RANK"]) == hvd.local_rank()
for count in (3, 200_000):
    mine, ours = torch.ones(count), torch.ones(count)
    work = dist.all_reduce(mine, async_op=True)
    handle = hvd.allreduce_async_(ours, op=hvd.Sum)
    work.wait()
    hvd.synchronize(handle)
    assert mine.eq(2).all() and ours.eq(2).all()
hvd.shutdown()
dist.barrier()
hvd.init()
hvd.barrier()
dist.destroy_process_group()
print("sum", hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), flush=True)
""",
    )
    finished = running.wait()
    assert (finished.returncode, finished.stderr) == (0, "")
    assert sorted(finished.stdout.splitlines()) == ["[0] sum 2.0", "[1] sum 2.0"]


LOSES = """
from torch.utils.data import DataLoader
rows = iter(DataLoader(list(range(100)), num_workers=1, persistent_workers=True, multiprocessing_context="fork"))
next(rows)
handle = hvd.allreduce_async(torch.ones(100_000), name="pending")
print("alive", os.getpid(), flush=True)
try:
    if hvd.rank() == 1:
        time.sleep(600)
    hvd.join() if hvd.rank() == 0 else hvd.allreduce(torch.ones(100_000), name="never")
except hvd.HorovodInternalError as error:
    print("reported", error, flush=True)
    raise
"""


def test_the_loss_of_a_worker_is_reported_to_the_others_though_its_dataloader_lives(hvdrun: Launcher) -> None:
    running = start(hvdrun, LOSES, "--grace", "60s", size=3)
    pids = [int(running.stdout.wait_for(rf"^\[{rank}\] alive (\d+)$", 60)[1]) for rank in range(3)]
    time.sleep(0.2)  # the others wait by now, which is what is tested
    kill(pids[1])
    for rank in (0, 2):
        running.stdout.wait_for(rf"^\[{rank}\] reported .*rank 1 was cut off", 60)
    finished = running.wait()
    assert finished.returncode == 128 + signal.SIGKILL
    for folder in hvdrun.directory.parent.glob("tmp/pymp-*"):
        shutil.rmtree(folder)  # a killed DataLoader's own
