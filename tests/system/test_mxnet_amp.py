"""MXNet's automatic mixed precision: it changes MXNet for the whole process, so its workers are a job of their own."""

from importlib.util import find_spec

import pytest

from tests.system.launcher import Launcher

pytestmark = pytest.mark.skipif(find_spec("mxnet") is None, reason="mxnet is not installed: pip install '.[mxnet]'")

# bfloat16: MXNet computes float16 on GPUs only; the loss is scaled all the same.
TRAINS = """
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
    hvdrun.write("train.py", TRAINS)
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(hvdrun.directory / "inductor"),
    }
    finished = hvdrun("-np", "2", "python", "train.py", environment=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    first, second = (
        [line[4:] for line in finished.stdout.splitlines() if line.startswith(f"[{rank}] ")] for rank in range(2)
    )
    assert first == second
    told = [line.split()[:3] for line in first]
    assert told == [
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
with pytest.raises(ValueError, match="looks for overflows before.*use hvd.DistributedTrainer"):
    trainer.step(1)
print("told")
"""


def test_a_trainer_that_would_skip_steps_on_some_workers_only_is_refused(hvdrun: Launcher) -> None:
    hvdrun.write("train.py", REFUSES)
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(hvdrun.directory / "inductor")}
    finished = hvdrun("-np", "2", "python", "train.py", environment=environment)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert sorted(finished.stdout.splitlines()) == ["[0] told", "[1] told"]
