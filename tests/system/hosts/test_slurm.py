"""Jobs in real allocations of a real Slurm, whose nodes are the hosts of a lab."""

import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdrun.joining.token import create_files
from tests.deploy.samples import check_sample
from tests.house.sources import ROOT
from tests.lab.fixtures import BuildLab
from tests.lab.process import end
from tests.lab.slurm import Slurm, require_slurm, wait_slowly
from tests.system.scripts import WORLD

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

BATCH = ROOT / "deploy" / "slurm"
SHOW = "echo $HOROVOD_RANK $HOROVOD_HOSTNAME"
TRAIN = """
import socket, torch
import worker_runtime.torch as hvd
hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum)
print("rank", hvd.rank(), "of", int(total), "trains in slot", hvd.local_rank(), "of", socket.gethostname(), flush=True)
"""
TRAINED = [f"rank {n} of 6 trains in slot {n % 2} of host{n // 2 + 1}" for n in range(6)]
ELASTIC = """
import time
from pathlib import Path
import torch
import worker_runtime.torch as hvd
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, steps=0)

@hvd.elastic.run
def train(state):
    print("began with", state.steps, flush=True)
    while not hvd.allreduce(torch.tensor(float(Path("stop").exists())), op=hvd.Max, name="stop").item():
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.steps += 1
        state.commit()
        if hvd.rank() == 0 and state.steps % 10 == 0:
            print("size", hvd.size(), flush=True)
        time.sleep(0.05)
train(state)
"""
SAVES = """
import os, signal, time

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm and hvdrun send it
    time.sleep(2)
    os.write(1, b"saved\\n")
    os._exit(0)

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def slurm(lab: BuildLab) -> Iterator[Slurm]:
    """host1 to host3, two CPUs and two GPUs each."""
    require_slurm()
    with Slurm(lab(3)) as cluster:
        for path in BATCH.iterdir():
            shutil.copy(path, cluster.folder)
        (cluster.folder / "train.py").write_text(TRAIN, encoding="utf-8")
        yield cluster
        wait_slowly(lambda: cluster.find_left() == (), f"the end of {cluster.find_left()}")


def write_batch(slurm: Slurm, text: str) -> Path:
    path = slurm.folder / "job.sbatch"
    path.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
    return path


def count(output: str) -> dict[str, int]:
    """How many workers each host had."""
    hosts = re.findall(r"^\[\d+(?:@\w+)?\] \d+ (\w+)$", output, re.MULTILINE)
    return {host: hosts.count(host) for host in sorted(set(hosts))}


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ("--nodes=3 --ntasks-per-node=2", {"host1": 2, "host2": 2, "host3": 2}),
        ("--ntasks=5", {"host1": 2, "host2": 2, "host3": 1}),
        ("--nodes=2", {"host1": 1, "host2": 1}),
        ("--nodes=2 --cpus-per-task=2", {"host1": 1, "host2": 1}),
        ("--nodes=2 --gres=gpu:2", {"host1": 2, "host2": 2}),
        ("--nodelist=host[1-2] --gpus=3", {"host1": 2, "host2": 1}),
        ("--nodes=2 --gres=gpu:2 --ntasks-per-node=1", {"host1": 1, "host2": 1}),
    ],
)
def test_each_kind_of_allocation_gives_hosts_and_slots(slurm: Slurm, options: str, workers: dict[str, int]) -> None:
    """From the login node (salloc), and from the job's first node (sbatch)."""
    command = ["hvdrun", "--no-prefork", "sh", "-c", SHOW]
    job = slurm.submit(*shlex.split(options), write_batch(slurm, shlex.join(command)))
    interactive = slurm.run("salloc", *shlex.split(options), *command)
    assert interactive.returncode == 0, interactive.stderr
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert count(interactive.stdout) == count(slurm.output(job)) == workers
    total = sum(workers.values())
    named = ", ".join(f"{host}:{slots}" for host, slots in workers.items())
    assert f"hvdrun: Slurm job {job}: {total} slots on {named}." in slurm.output(job)


@pytest.mark.sample
def test_the_static_batch_script_trains_on_three_nodes(slurm: Slurm, *, rewrite: bool) -> None:
    job = slurm.submit("static.sbatch", "train.py")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert sorted(re.findall("rank .*", slurm.output(job))) == TRAINED
    check_sample("static.sbatch", slurm.output(job), rewrite=rewrite)


def test_a_script_under_srun_alone_trains_as_ever(slurm: Slurm) -> None:
    words = "MASTER_ADDR=host1 MASTER_PORT=29511 srun --ntasks=6 python train.py"
    job = slurm.submit("--nodes=3", "--ntasks-per-node=2", write_batch(slurm, words))
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert sorted(re.findall("rank .*", slurm.output(job))) == TRAINED


def test_workers_have_the_gpus_and_no_variables_of_a_task(slurm: Slurm) -> None:
    script = "echo $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK; env | grep -c PROCID; true"
    options = ("--nodes=2", "--gres=gpu:2", "--ntasks-per-node=2", "--cpus-per-task=1")
    job = slurm.submit(*options, write_batch(slurm, shlex.join(["hvdrun", "--no-prefix", "sh", "-c", script])))
    slurm.wait(job)
    said = [line for line in slurm.output(job).splitlines() if not line.startswith("hvdrun")]
    assert sorted(said) == ["0"] * 4 + [f"{job} 0,1 1"] * 4, slurm.output(job)


@pytest.mark.sample
def test_a_node_that_is_set_down_is_a_lost_host(slurm: Slurm, *, rewrite: bool) -> None:
    (slurm.folder / "train.py").write_text(ELASTIC, encoding="utf-8")
    job = slurm.submit("elastic.sbatch", "train.py")
    slurm.wait_for(job, "size 6$")
    slurm.control("update", "nodename=host3", "state=down", "reason=test")
    slurm.wait_for(job, "size 4$")
    assert "hvdrun: host host3 was lost: its agent's srun ended" in slurm.output(job)
    shown = slurm.output(job)
    slurm.lab["host3"].destroy()  # removes what Slurm itself leaves on a node that it has given up
    (slurm.folder / "stop").touch()
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    check_sample("elastic.sbatch", shown, rewrite=rewrite)


@pytest.mark.parametrize(("size", "first"), [("--min-np 2", 6), ("-np 4", 4)], ids=["fewer are enough", "one is spare"])
def test_a_world_of_torch_distributed_begins_again_on_the_nodes_that_are_left(
    slurm: Slurm, size: str, first: int
) -> None:
    (slurm.folder / "world.py").write_text(WORLD, encoding="utf-8")
    command = f"hvdrun {size} --max-restarts 3 python world.py"
    job = slurm.submit("--nodes=3", "--ntasks-per-node=2", "--no-kill", write_batch(slurm, command))
    slurm.wait_for(job, f"round 0 rank 3 of {first} on host2$")
    slurm.control("update", "nodename=host2", "state=down", "reason=test")
    slurm.wait_for(job, "round 1 rank 3 of 4 on host3$")
    assert "hvdrun: host host2 was lost: its agent's srun ended" in slurm.output(job)
    slurm.lab["host2"].destroy()  # removes what Slurm itself leaves on a node that it has given up
    (slurm.folder / "end").touch()
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert "all 4 workers are started again (2 of 3 restarts left)" in slurm.output(job)


@pytest.mark.sample
def test_a_job_that_is_ordered_to_stop_continues_in_its_next_start(slurm: Slurm, *, rewrite: bool) -> None:
    """Slurm sends the signal before the time is over; the batch script hands it on, and has the job queued again."""
    (slurm.folder / "train.py").write_text(ELASTIC, encoding="utf-8")
    job = slurm.submit("elastic.sbatch", "train.py")
    slurm.wait_for(job, "size 6$")
    slurm.run("scancel", "--batch", "--signal=USR2", job)
    slurm.wait_for(job, "start 1 of job")
    slurm.wait_for(job, f"continuing from .*/checkpoints-{job}/")
    (slurm.folder / "stop").touch()
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert "start 2" not in slurm.output(job)
    assert len(set(re.findall(r"began with (\d+)", slurm.output(job)))) == 2
    check_sample("requeued", slurm.output(job), {str(slurm.folder): "/work"}, rewrite=rewrite)


@pytest.mark.sample
def test_nodes_of_a_later_job_join_one_that_runs(slurm: Slurm, *, rewrite: bool) -> None:
    create_files(slurm.folder / "host1:29600.token", lifetime_seconds=0.0)  # of a job that was killed here
    """Each on a machine of its own, though the first has a CPU to spare."""
    (slurm.folder / "train.py").write_text(ELASTIC, encoding="utf-8")
    job = slurm.submit("--nodelist=host1", "--cpus-per-task=1", "growing.sbatch", "train.py")
    slurm.wait_for(job, "size 2$")
    agents = slurm.submit("--cpus-per-task=1", "agents.sbatch", "host1:29600")
    slurm.wait_for(job, "size 4$")
    (slurm.folder / "stop").touch()
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert slurm.wait(agents) == "COMPLETED", slurm.output(agents)
    check_sample("agents.sbatch", slurm.output(agents), rewrite=rewrite)
    assert list(slurm.folder.glob("*.token*")) == []


def test_a_cancelled_job_leaves_nothing(slurm: Slurm) -> None:
    job = slurm.submit("--nodes=3", write_batch(slurm, "hvdrun sh -c 'echo up; sleep 600'"))
    wait_slowly(lambda: slurm.output(job).count("] up") == 3, "three workers")
    slurm.run("scancel", job)
    assert slurm.wait(job) == "CANCELLED"


@pytest.mark.parametrize(("script", "size"), [("static.sbatch", 6), ("elastic.sbatch", 6), ("growing.sbatch", 2)])
def test_the_workers_of_a_cancelled_job_have_their_grace(slurm: Slurm, script: str, size: int) -> None:
    (slurm.folder / "train.py").write_text(SAVES, encoding="utf-8")
    job = slurm.submit("--cpus-per-task=1", script, "train.py")
    wait_slowly(lambda: slurm.output(job).count("] up") == size, "the workers")
    slurm.run("scancel", job)
    wait_slowly(lambda: slurm.find_left() == (), "the end of all processes")
    assert slurm.output(job).count("] saved") == size, slurm.output(job)
    assert list(slurm.folder.glob("*.token*")) == []


def test_a_killed_hvdrun_leaves_no_step(slurm: Slurm) -> None:
    batch = "echo start; hvdrun sh -c 'echo up; sleep 600'; echo ended with $?; sleep 700"
    job = slurm.submit("--nodes=3", write_batch(slurm, batch))
    wait_slowly(lambda: slurm.output(job).count("] up") == 3, "three workers")
    launchers = [
        one for one in slurm.lab["host1"].processes() if one.command[1:2] and one.command[1].endswith("/hvdrun")
    ]
    end(launchers, signal.SIGKILL)
    slurm.wait_for(job, "ended with 137")
    wait_slowly(lambda: not any("sleep 600" in trace for trace in slurm.find_left()), "the end of all workers")
    steps = ("squeue", "--steps", "--noheader", "--format=%i")
    wait_slowly(lambda: slurm.run(*steps).stdout.split() == [f"{job}.batch"], "the end of hvdrun's steps")
    slurm.run("scancel", job)


def test_agents_run_behind_a_prefix_on_every_node(slurm: Slurm) -> None:
    wrapper = slurm.folder / "apptainer"
    wrapper.write_text('#!/bin/sh\nshift 3\nIN_IMAGE="$IMAGE" exec "$@"\n'.replace("$IMAGE", "yes"), encoding="utf-8")
    wrapper.chmod(0o755)
    prefix = f"{wrapper} exec --nv image.sif"
    command = ["hvdrun", "--agent-prefix", prefix, "sh", "-c", "echo $IN_IMAGE"]
    job = slurm.submit("--nodes=3", write_batch(slurm, shlex.join(command)))
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    assert re.findall(r"\] yes$", slurm.output(job), re.MULTILINE) == ["] yes"] * 3


def test_an_agent_with_fewer_cpus_than_the_job_warns(lab: BuildLab) -> None:
    """Where tasks are bound, a step of one CPU leaves the agent one of the job's two."""
    require_slurm()
    with Slurm(lab(1), task_plugin="task/affinity") as slurm:
        step = ["srun", "--ntasks=1", "--cpus-per-task=1", "--exact", "--cpu-bind=cores", "hvdrun", "true"]
        said = slurm.run("salloc", "--ntasks=1", "--cpus-per-task=2", *step).stderr
        assert "the workers on host1 may use 1 of the 2 CPUs that Slurm job 1 has there" in said
        plain = slurm.run("salloc", "--ntasks=1", "--cpus-per-task=2", "hvdrun", "true").stderr
        assert "may use" not in plain


def test_without_an_allocation_hvdrun_says_what_is_missing(slurm: Slurm) -> None:
    done = slurm.run("hvdrun", "python", "train.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the number of workers is missing: " in done.stderr
    assert "as in hvdrun -np 2 python train.py" in done.stderr


def test_several_hvdruns_under_srun_are_refused(slurm: Slurm) -> None:
    done = slurm.run("srun", "--ntasks=2", "hvdrun", "true")
    assert "srun has started 2 hvdruns" in done.stderr
