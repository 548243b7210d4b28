"""Elastic MXNet jobs: the example loses a worker and gets another; jobs with a stop notice save, and continue."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.frameworks import needs_mxnet
from tests.house.sources import ROOT
from tests.system.launcher import Finished, Launcher

EXAMPLE = ROOT / "examples" / "gluon_elastic.py"
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
LIMIT_SECONDS = 60.0

pytestmark = needs_mxnet

SCRIPT = """
import os, time
import torch
import mxnet as mx
import numpy as np
import worker_runtime.mxnet as hvd

hvd.init()
mx.random.seed(hvd.rank())
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(8, activation="tanh"), mx.gluon.nn.Dense(1))
net.initialize(mx.init.Xavier())
samples = int(os.environ["SAMPLES"])
data = np.arange(samples, dtype="float32").reshape(-1, 1) / samples
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
sampler = hvd.elastic.ElasticSampler(data)
state = hvd.elastic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0, step=0)
loader = mx.gluon.data.DataLoader(data, 3, sampler=sampler)
seen = open(f"seen.{os.getpid()}", "w")

@hvd.elastic.run
def train(state):
    stop = max(int(os.environ["STOP"]), state.step + 1)
    while state.epoch < 2:
        for batch in loader:
            with mx.autograd.record():
                loss = net(batch).square().mean()
            loss.backward()
            trainer.step(1)
            state.sampler.record_batch(0, len(batch))
            state.step += 1
            numbers = (state.epoch + batch.asnumpy()[:, 0]) * samples
            print(*numbers.round().astype(int).tolist(), file=seen, flush=True)
            if state.step >= stop:
                if state.step == stop and hvd.rank() == 0:
                    print("here", flush=True)
                time.sleep(0.05)  # so that the notice comes before the end
            state.commit()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)

train(state)
if hvd.rank() == 0:
    values = [parameter.data().asnumpy().tolist() for parameter in net.collect_params().values()]
    print("end", state.step, trainer.optimizer.num_update, values, flush=True)
"""


def test_the_example_loses_a_worker_gets_another_stops_and_continues(hvdrun: Launcher) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    slow = text.replace("trainer.step(len(images))", "trainer.step(len(images)); __import__('time').sleep(0.05)")
    hvdrun.write("train.py", slow.replace("state.epoch < EPOCHS", "state.epoch < 10**6"))
    words = ("-np", "2", "--min-np", "1", "--checkpoint", "kept", "--grace", "60s", "python", "train.py")
    running = hvdrun.start(*words, environment=ENVIRONMENT)
    running.stdout.wait_for(r"epoch 1: 2 workers, loss", LIMIT_SECONDS)
    (victim,) = [each.pid for each in hvdrun.processes("train.py") if is_rank(each.pid, 1)]
    os.kill(victim, signal.SIGKILL)
    # An epoch may see both changes, so that no line of the example names one worker.
    running.stderr.wait_for(r"(?s)continues with 1 worker\..*continues with 2 workers\.$", LIMIT_SECONDS)
    epoch = running.stdout.text().count("epoch")
    running.stdout.wait_for(rf"epoch {epoch}: 2 workers, loss", LIMIT_SECONDS)
    running.send(signal.SIGUSR2)
    stopped = running.wait(LIMIT_SECONDS)
    assert stopped.returncode == 75, stopped.stderr
    hvdrun.write(
        "train.py", text.replace("state.epoch < EPOCHS", "state.epoch < 1")
    )  # the checkpoint is past this epoch
    resumed = hvdrun("-np", "1", *words[2:], environment=ENVIRONMENT)
    assert (resumed.returncode, resumed.stdout) == (0, ""), resumed.stderr
    assert "hvdrun: continuing from" in resumed.stderr


def is_rank(pid: int, rank: int) -> bool:
    """Whether the process is the worker that was started with this rank."""
    return f"HOROVOD_RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def train(hvdrun: Launcher, *options: str, samples: int, stop: int = 10**6) -> Finished:
    """Train to the end, or until a notice that comes after so many steps."""
    words = (*options, "--no-prefix", "--checkpoint", "kept", "--grace", "60s", "python", "train.py")
    running = hvdrun.start(*words, environment={**ENVIRONMENT, "SAMPLES": str(samples), "STOP": str(stop)})
    if stop < 10**6:
        running.stdout.wait_for("here", limit_seconds=60)
        running.send(signal.SIGUSR2)
    return running.wait()


@pytest.mark.nightly
def test_a_job_that_is_ordered_to_stop_saves_and_continues_at_another_size(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT)
    stopped = train(hvdrun, "-np", "2", "--min-np", "1", samples=300, stop=7)
    path = hvdrun.directory / "kept" / "checkpoint-000001.pt"
    assert (stopped.returncode, stopped.stdout) == (75, "here\n"), stopped.stderr
    assert f"hvdrun: the state is saved in {path}; the same command continues from there\n" in stopped.stderr
    resumed = train(hvdrun, "-np", "1", samples=300)
    assert (resumed.returncode, resumed.stdout.split()[0]) == (0, "end"), resumed.stderr
    assert f"hvdrun: continuing from {path}\n" in resumed.stderr
    seen = Counter(word for path in hvdrun.directory.glob("seen.*") for word in path.read_text().split())
    assert seen == {str(sample): 1 for sample in range(2 * 300)}


@pytest.mark.nightly
def test_a_job_that_is_stopped_again_and_again_ends_as_if_it_had_not_been(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", SCRIPT)
    whole = train(hvdrun, "-np", "3", "--min-np", "2", samples=900)
    assert whole.returncode == 0, whole.stderr
    for stop in (5, 17):
        stopped = train(hvdrun, "-np", "3", "--min-np", "2", samples=900, stop=stop)
        assert stopped.returncode == 75, stopped.stderr
    resumed = train(hvdrun, "-np", "3", "--min-np", "2", samples=900)
    assert (resumed.returncode, resumed.stdout) == (0, whole.stdout), resumed.stderr


PARTS = """
import os, signal
import torch
import mxnet as mx
import numpy as np
import worker_runtime.mxnet as hvd

hvd.init()
values = np.arange(24, dtype="float32").reshape(-1, 1)
net = mx.gluon.nn.Dense(1, in_units=1)
net.initialize()
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
state = hvd.elastic.GluonState(net=net, trainer=trainer, epoch=0)

def divide():
    global data
    data = mx.io.NDArrayIter(values[hvd.rank()::hvd.size()], None, 2)

divide()
state.register_reset_callbacks([divide])

@hvd.elastic.run
def train(state):
    while state.epoch < 3:
        seen = []
        for batch in data:
            with mx.autograd.record():
                loss = net(batch.data[0]).square()
            loss.backward()
            if hvd.rank() == 1 and state.epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            trainer.step(2)
            seen += batch.data[0].asnumpy()[:, 0].astype(int).tolist()
        print(state.epoch, *seen, flush=True)
        data.reset()
        state.epoch += 1
        state.commit()

train(state)
"""


def test_an_iterator_with_parts_is_divided_anew_in_the_epoch_after_a_loss(hvdrun: Launcher) -> None:
    """The lost worker's slot is closed: nobody takes its place."""
    hvdrun.write("train.py", PARTS)
    words = ("-np", "2", "--min-np", "1", "--slot-failures", "1", "--no-prefix", "python", "train.py")
    finished = hvdrun(*words, environment=ENVIRONMENT)
    assert finished.returncode == 0, finished.stderr
    lines = sorted([int(word) for word in line.split()] for line in finished.stdout.splitlines())
    half, other = list(range(0, 24, 2)), list(range(1, 24, 2))
    assert lines == [[0, *half], [0, *other], [1, *half], [2, *range(24)]]
