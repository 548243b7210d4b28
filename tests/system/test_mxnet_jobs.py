"""Jobs whose scripts use MXNet: forked workers, whose forkserver knows no MXNet, and executed ones.

MXNet's automatic mixed precision changes MXNet for the whole process, so it is tested in jobs of its own.
"""

import pytest

from tests.frameworks import needs_mxnet
from tests.system.launcher import Launcher

pytestmark = [
    pytest.mark.nightly,
    needs_mxnet,
]

BEGINS = """
import os, sys
at_start = sorted({"torch", "mxnet"} & sys.modules.keys())
import mxnet as mx
import horovod.mxnet as hvd
hvd.init()
"""
TRAINS = f"""{BEGINS}
mx.random.seed(hvd.rank())
network = mx.gluon.nn.HybridSequential()
network.add(mx.gluon.nn.Dense(8, activation="relu"), mx.gluon.nn.Dense(1))
network.initialize(mx.init.Xavier())
network.hybridize()
hvd.broadcast_parameters(network.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(network.collect_params(), "sgd", {{"learning_rate": 0.1}})
data = mx.nd.random.normal(shape=(4, 5)) + hvd.rank()
for step in range(3):
    with mx.autograd.record():
        loss = network(data).square().mean()
    loss.backward()
    trainer.step(4)
weight = network[0].weight.data()
drift = hvd.allreduce(weight, op=hvd.Max) - hvd.allreduce(weight, op=hvd.Min)
assert drift.abs().max().asscalar() == 0, "the workers drifted apart"
mx.nd.waitall()
print(at_start, hvd.rank(), "of", hvd.size(), "threads", len(os.listdir("/proc/self/task")))
"""
# Rank 0 has its parameters, rank 1 never initialises one of them.
STALLS = f"""{BEGINS}
network = mx.gluon.nn.Dense(2, prefix="late_", in_units=3 if hvd.rank() == 0 else 0)
network.initialize()
hvd.broadcast_parameters(network.collect_params())
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.01)
hvd.barrier()
"""
# Ends with an operation under way, one without an answer, and a root that waits for no one.
ENDS = f"""{BEGINS}
network = mx.gluon.nn.Dense(2, in_units=3 if hvd.rank() == 0 else 0)
network.initialize()
hvd.broadcast_parameters(network.collect_params())
under_way = hvd.allreduce_async_(mx.nd.ones(300_000), name="under way")
if hvd.rank() == 0:
    alone = hvd.allreduce_async(mx.nd.ones(3), name="alone")
computed = mx.nd.dot(mx.nd.ones((500, 500)), mx.nd.ones((500, 500)))
print("ends", hvd.rank(), flush=True)
"""
THREADS = "2"


def run(hvdrun: Launcher, script: str, *, forks: bool = True) -> list[str]:
    """What two workers print, in the order of their ranks; all must be well."""
    hvdrun.write("train.py", script)
    words = ("-np", "2", "-x", "OMP_NUM_THREADS", "python", "train.py")
    finished = hvdrun(*words, environment={"OMP_NUM_THREADS": THREADS}, forks=forks)
    assert (finished.returncode, finished.stderr) == (0, "")
    return sorted(finished.stdout.splitlines())


def test_a_forked_worker_imports_mxnet_itself_and_trains_as_an_executed_one(hvdrun: Launcher) -> None:
    forked, executed = run(hvdrun, TRAINS), run(hvdrun, TRAINS, forks=False)
    assert [line.partition("threads")[0] for line in forked] == [f"[{r}] ['torch'] {r} of 2 " for r in range(2)]
    assert [line.replace("['torch']", "[]") for line in forked] == executed  # as many threads, too


@pytest.mark.parametrize("forks", [True, False], ids=["forked", "executed"])
def test_a_parameter_that_a_rank_never_initialises_is_named(hvdrun: Launcher, *, forks: bool) -> None:
    hvdrun.write("train.py", STALLS)
    words = ("-np", "2", "-x", "HOROVOD_STALL_CHECK_TIME_SECONDS", "python", "train.py")
    running = hvdrun.start(*words, environment={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}, forks=forks)
    running.stderr.wait_for(r"^hvdrun: rank 1 .* waited for it in broadcast 'late_weight'", 60)
    hvdrun.write("go", "")
    assert running.wait().returncode == 0


@pytest.mark.parametrize("forks", [True, False], ids=["forked", "executed"])
def test_a_program_may_end_with_work_pending(hvdrun: Launcher, *, forks: bool) -> None:
    assert run(hvdrun, ENDS, forks=forks) == [f"[{rank}] ends {rank}" for rank in range(2)]


# bfloat16: MXNet computes float16 on GPUs only; the loss is scaled all the same.
TRAINS_MIXED = """
import logging
import worker_runtime.mxnet as hvd
import mxnet as mx
from mxnet.contrib import amp

logging.disable()
amp.init(target_dtype="bfloat16")
hvd.init()
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(8, activation="relu", in_units=6), mx.gluon.nn.Dense(4, in_units=8))
net.initialize()
net.hybridize()
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
optimizer = mx.optimizer.create("sgd", learning_rate=0.1)
trainer = hvd.DistributedTrainer(net.collect_params(), optimizer)
amp.init_trainer(trainer)
measure = mx.gluon.loss.L2Loss()
for step in range(5):
    before = net[0].weight.data().asnumpy()
    with mx.autograd.record():
        loss = measure(net(mx.nd.ones((4, 6)) * (hvd.rank() + 1)), mx.nd.ones((4, 4)))
        if step == 2 and hvd.rank() == 1:
            loss = loss * float("inf")
        with amp.scale_loss(loss, trainer) as scaled:
            mx.autograd.backward(scaled)
    trainer.allreduce_grads()
    if step == 4:
        amp.unscale(trainer)
        norm = mx.gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], 1e6)
        assert 0 < norm < 1e3, norm
    trainer.update(4)
    after = net[0].weight.data().asnumpy()
    print(step, (before != after).any(), trainer._amp_loss_scaler.loss_scale, hash(after.tobytes()))
"""


def test_all_workers_skip_a_step_that_overflows_on_one(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", TRAINS_MIXED)
    environment = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"}
    finished = hvdrun("-np", "2", "python", "train.py", environment=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    first, second = (
        [line[4:] for line in finished.stdout.splitlines() if line.startswith(f"[{rank}] ")] for rank in range(2)
    )
    assert first == second
    reported = [line.split()[:3] for line in first]
    assert reported == [
        ["0", "True", "65536.0"],
        ["1", "True", "65536.0"],
        ["2", "False", "65536.0"],
        ["3", "True", "32768.0"],
        ["4", "True", "32768.0"],
    ]


REFUSES = """
import pytest
import worker_runtime.mxnet as hvd
import mxnet as mx
from mxnet.contrib import amp

amp.init(target_dtype="bfloat16")
hvd.init()
net = mx.gluon.nn.Dense(1, in_units=2)
net.initialize()
optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd"))
trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
amp.init_trainer(trainer)
with mx.autograd.record():
    loss = net(mx.nd.ones((1, 2)))
    with amp.scale_loss(loss, trainer) as scaled:
        mx.autograd.backward(scaled)
with pytest.raises(ValueError, match="checks them before.*use hvd.DistributedTrainer"):
    trainer.step(1)
print("reported")
"""


def test_a_trainer_that_would_skip_steps_on_some_workers_only_is_refused(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", REFUSES)
    finished = hvdrun("-np", "2", "python", "train.py")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] reported", "[1] reported"]
