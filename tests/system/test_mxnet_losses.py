"""MXNet jobs lose workers in the middle of a step: the others complete it once, averaged over those that took part."""

import pytest

from tests.frameworks import needs_mxnet
from tests.system.launcher import Launcher

pytestmark = needs_mxnet

STEPS = 12
# The gradient of each element is 1 + the first rank of its worker, so a step shows whose gradients are in its average.
# The large parameter travels through gloo, the small one through the sequencer.
BEGINS = """
import hashlib, os, signal, threading
import numpy as np
import mxnet as mx
import worker_runtime.mxnet as hvd

hvd.init()
mine = 1.0 + hvd.rank()
shapes = {"small": (3,), "large": (300_000,)}
members = {1.0, 2.0, 3.0}
victims = {4: VICTIM}
values = [0.0]

def lose_a_worker(step):
    '''The victim gets SIGKILL DELAY seconds after its step has begun.'''
    if victims.get(step) == mine:
        threading.Timer(DELAY, os.kill, (os.getpid(), signal.SIGKILL)).start()

def check(step, arrays, updates):
    '''The step was done once, with the average of all members or, after a loss, of those that are left.'''
    if victims.get(step) == mine:
        threading.Event().wait()  # for the signal
    before, after = values[-1], float(arrays[0][0])
    assert all((array == after).all() for array in arrays), "the elements differ"
    left = members - {victims.get(step)}
    averages = [sum(each) / len(each) for each in (members, left)]
    assert any(np.isclose(before - after, average, rtol=1e-6) for average in averages), (step, before - after, averages)
    members.intersection_update(left)
    assert updates == step + 1, (updates, step)
    values.append(after)

def end():
    text = np.float64(values).tobytes()
    print("of", hvd.size(), "values", hashlib.sha256(text).hexdigest(), flush=True)
"""
TRAINS_GLUON = f"""
class Net(mx.gluon.nn.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            for name, shape in shapes.items():
                setattr(self, name, self.params.get(name, shape=shape, init="zeros"))

    def hybrid_forward(self, F, x, small, large):
        return x * (small.sum() + large.sum())

net = Net()
net.initialize()
params = net.collect_params()
hvd.broadcast_parameters(params, root_rank=0)
TRAINER
for step in range({STEPS}):
    with mx.autograd.record():
        loss = net(mx.nd.array([mine]))
    loss.backward()
    lose_a_worker(step)
    trainer.step(1)
    check(step, [each.data().asnumpy() for each in params.values()], optimizer.num_update)
end()
"""
TRAINS_MODULE = f"""
data, label = mx.sym.var("data"), mx.sym.var("label")
variables = [mx.sym.var(name, shape=shape, init=mx.init.Zero()) for name, shape in shapes.items()]
output = mx.sym.MakeLoss(mx.sym.broadcast_mul(data, mx.sym.add_n(*[each.sum() for each in variables])))
module = mx.mod.Module(output, data_names=["data"], label_names=None)
module.bind(data_shapes=[("data", (1,))])
module.init_params()
arguments, auxiliary = module.get_params()
hvd.broadcast_parameters(arguments, root_rank=0)
module.set_params(arguments, auxiliary)
optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0, rescale_grad=1.0))
module.init_optimizer(kvstore=None, optimizer=optimizer)
for step in range({STEPS}):
    module.forward_backward(mx.io.DataBatch([mx.nd.array([mine])]))
    lose_a_worker(step)
    module.update()
    check(step, [each.asnumpy() for each in module.get_params()[0].values()], optimizer.num_update)
end()
"""
TRAININGS = {
    "DistributedTrainer": TRAINS_GLUON.replace(
        "TRAINER",
        'optimizer = mx.optimizer.create("sgd", learning_rate=1.0)\n'
        "trainer = hvd.DistributedTrainer(params, optimizer)",
    ),
    "DistributedOptimizer in gluon.Trainer": TRAINS_GLUON.replace(
        "TRAINER",
        'optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0))\n'
        "trainer = mx.gluon.Trainer(params, optimizer, kvstore=None)",
    ),
    "DistributedOptimizer in Module": TRAINS_MODULE,
}


@pytest.mark.parametrize(
    ("way", "victim", "delay_seconds"),
    [
        ("DistributedTrainer", 0, 0.0),
        *(
            pytest.param(way, victim, delay, marks=pytest.mark.nightly)
            for way in TRAININGS
            for victim, delay in ((0, 0.002), (2, 0.0), (2, 0.004))
        ),
    ],
)
def test_the_others_complete_each_step_once_after_a_loss(
    hvdrun: Launcher, way: str, victim: int, delay_seconds: float
) -> None:
    begins = BEGINS.replace("VICTIM", str(1.0 + victim)).replace("DELAY", str(delay_seconds))
    hvdrun.write("train.py", begins + TRAININGS[way])
    finished = hvdrun("-np", "3", "--min-np", "2", "python", "train.py", environment={"OMP_NUM_THREADS": "1"})
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = [line.partition("] ")[2] for line in finished.stdout.splitlines()]
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0].startswith("of 2 values ")
