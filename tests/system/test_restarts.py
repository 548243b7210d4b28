"""Scripts of torch.distributed lose workers, and all are started again: they continue from their own checkpoint."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.system.launcher import Finished, Launcher
from tests.system.tables import rest_nightly

# Trains for 12 steps, writes a checkpoint after each third, and prints the parameters' bits. The words of the
# command are the rank, round and step of an event, and the event.
DDP = """
import hashlib, os, signal, sys, time
import torch
import torch.distributed as dist

victim, rounds, at, how = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
round_number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if how == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Linear(4, 2)
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
step = 0
if os.path.exists("checkpoint"):
    saved = torch.load("checkpoint")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
if rank == 0:
    print("round", round_number, "of", size, "from step", step, "port", os.environ["MASTER_PORT"], flush=True)
while step < 12:
    torch.manual_seed(100 * step + rank)
    optimizer.zero_grad()
    ddp(torch.randn(8, 4)).square().sum().backward()
    if (rank, step) == (victim, at) and round_number < rounds:
        if how == "exit":
            os._exit(7)
        if how == "late":
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    step += 1
    if rank == 0 and step % 3 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "writing")
        os.rename("writing", "checkpoint")
bits = torch.nn.utils.parameters_to_vector(ddp.parameters()).detach().numpy().tobytes()
print("parameters", hashlib.sha256(bits).hexdigest()[:16], flush=True)
del ddp, optimizer  # torch may crash or hang where a process group ends before its DDP, or while a peer needs it
dist.barrier()
dist.destroy_process_group()
"""
UNDISTURBED: set[str] = set()


def read_rounds(finished: Finished) -> list[tuple[int, int, int]]:
    """Each round: its number, how many workers it had, and the step at which it began."""
    found = re.findall(r"round (\d+) of (\d+) from step (\d+)", finished.stdout)
    return [(int(number), int(size), int(step)) for number, size, step in found]


def read_parameters(finished: Finished) -> set[str]:
    return set(re.findall(r"parameters (\w+)", finished.stdout))


@pytest.fixture
def undisturbed(hvdrun: Launcher) -> set[str]:
    """The parameters of a run without a fault, which is made once."""
    hvdrun.write("train.py", DDP)
    if not UNDISTURBED:
        finished = hvdrun("-np", "2", "python", "train.py", "9", "0", "0", "kill")
        Path(hvdrun.directory, "checkpoint").unlink()
        UNDISTURBED.update(read_parameters(finished))
    return UNDISTURBED


@pytest.mark.parametrize(("victim", "how"), rest_nightly([(1, "kill"), (0, "kill"), (1, "exit"), (0, "ignore")]))
def test_all_workers_are_started_again_and_train_as_if_nothing_had_happened(
    hvdrun: Launcher, undisturbed: set[str], victim: int, how: str
) -> None:
    finished = hvdrun("-np", "2", "--max-restarts", "3", "python", "train.py", str(victim), "2", "7", how)
    assert finished.returncode == 0, finished.stderr
    assert read_rounds(finished) == [(0, 2, 0), (1, 2, 6), (2, 2, 6)]
    assert len(set(re.findall(r"port (\d+)", finished.stdout))) == 3  # no round meets a process of the last
    assert read_parameters(finished) == undisturbed
    what = "failed with exit code 7" if how == "exit" else "was killed by SIGKILL (signal 9)"
    assert f"rank {victim} (localhost:{victim}) {what}; all 2 workers are started again (2 of 3 restarts left); " in (
        finished.stderr
    )


def test_an_elastic_job_finds_out_that_its_workers_are_one_world(hvdrun: Launcher, undisturbed: set[str]) -> None:
    finished = hvdrun("-np", "2", "--min-np", "1", "python", "train.py", "1", "1", "7", "late")
    assert finished.returncode == 0, finished.stderr
    assert read_rounds(finished) == [(0, 2, 0), (1, 2, 6)]
    assert read_parameters(finished) == undisturbed


def test_independent_commands_are_replaced_one_by_one_and_the_option_is_named(hvdrun: Launcher) -> None:
    script = (
        "echo $HOROVOD_RANK $HVD_INCARNATION; case $HOROVOD_RANK$HVD_INCARNATION in 11) exit 3;; 12) touch go;; esac; "
        "while [ ! -e go ]; do sleep 0.05; done"
    )
    finished = hvdrun("-np", "2", "--min-np", "1", "sh", "-c", script)
    assert finished.returncode == 0
    assert sorted(line.split(" ", 1)[1] for line in finished.stdout.splitlines()) == ["0 1", "1 1", "1 2"]
    assert finished.stderr.count("with --max-restarts all workers are started again together") == 1


def test_the_last_failure_decides_when_no_restart_is_left(hvdrun: Launcher) -> None:
    script = "[ $RANK = 1 ] || exec sleep 60; exit $((3 + $TORCHELASTIC_RESTART_COUNT))"
    finished = hvdrun("-np", "2", "--max-restarts", "1", "sh", "-c", script)
    assert finished.returncode == 4
    assert "(0 of 1 restarts left)" in finished.stderr
    assert "rank 1 on localhost (slot 1) failed first after" in finished.stderr
    assert "Lost before: rank 1 (localhost:1) failed with exit code 3." in finished.stderr


def test_each_round_has_files_of_its_own_and_an_index_shows_how_their_workers_ended(hvdrun: Launcher) -> None:
    script = 'echo "in $TORCHELASTIC_RESTART_COUNT"; exit $((3 - 3 * TORCHELASTIC_RESTART_COUNT))'
    assert hvdrun("-np", "1", "--max-restarts", "1", "--output-filename", "out", "sh", "-c", script).returncode == 0
    folder = hvdrun.directory / "out"
    files = json.loads((folder / "index.json").read_text())["files"]
    assert [(folder / entry["stdout"]).read_text() for entry in files] == ["[0] in 0\n", "[0] in 1\n"]
    parts = ("stdout", "round", "incarnation", "exit_code")
    assert [tuple(entry[part] for part in parts) for entry in files] == [
        ("rank.0/stdout", 0, 1, 3),
        ("rank.0/stdout.1", 1, 2, 0),
    ]


def test_a_stop_notice_for_the_job_ends_it_though_restarts_are_left(hvdrun: Launcher) -> None:
    script = 'echo ready; while [ ! -e "${HVD_SOCKET%/*}/stopping" ]; do sleep 0.05; done; exit 75'
    running = hvdrun.start("-np", "2", "--max-restarts", "3", "sh", "-c", script)
    running.stdout.wait_for("(?s)ready.*ready", 60)
    running.send(signal.SIGUSR2)
    assert running.wait().returncode == 75


HVD = """
import os, signal
import torch
import worker_runtime.torch as hvd

hvd.init()
round_number = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert ("RANK" in os.environ) != (os.environ["HOROVOD_ELASTIC"] == "1")
for step in range(5):
    if step == 3 and hvd.rank() in {victims} and round_number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    total = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="x")
print("round", round_number, "of", hvd.size(), "from step 0", total.tolist())
"""


@pytest.mark.parametrize(
    ("options", "victims"),
    rest_nightly([(("--max-restarts", "1"), {1}), (("--min-np", "1", "--max-restarts", "1"), {0, 1})]),
)
def test_workers_that_called_init_are_started_again_where_they_cannot_continue(
    hvdrun: Launcher, options: tuple[str, ...], victims: set[int]
) -> None:
    hvdrun.write("train.py", HVD.format(victims=victims))
    finished = hvdrun("-np", "2", *options, "python", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert read_rounds(finished) == [(1, 2, 0), (1, 2, 0)]
    assert "all 2 workers are started again (0 of 1 restarts left), from the beginning" in finished.stderr


@pytest.mark.nightly
def test_the_example_comes_back_and_learns(hvdrun: Launcher) -> None:
    example = ROOT / "examples" / "torch_ddp_restart.py"
    finished = hvdrun("-np", "2", "--max-restarts", "1", "python", example, "--kill-at", "1", "--epochs", "4")
    assert finished.returncode == 0, finished.stderr
    epochs = re.findall(r"epoch (\d)", finished.stdout)
    assert sorted(set(epochs)) == ["0", "1", "2", "3"]
    assert float(finished.stdout.rpartition(" ")[2]) > 0.9


RECORDED = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("there is no data")

main()
"""


@pytest.mark.nightly
def test_errors_that_record_has_written_are_on_the_page(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", RECORDED)
    finished = hvdrun("-np", "1", "python", "train.py")
    assert finished.returncode == 1
    assert "Its program reported (@record): ValueError: there is no data" in finished.stderr
