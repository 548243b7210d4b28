"""The examples for MXNet train on real data; so do the two programs that MXNet's own guide to Horovod shows."""

import re
from pathlib import Path

import pytest

from tests.frameworks import needs_mxnet
from tests.house.sources import ROOT
from tests.system.launcher import Finished, Launcher
from tests.system.tables import rest_nightly

EXAMPLES = ROOT / "examples"
EPOCHS = "12"  # enough for the accuracy that is promised
LIMIT_SECONDS = 220.0
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "1"}  # the first keeps a run short on a busy machine
# A narrow network on small images, three batches.
SMALL = ("--narrow", "16", "--image-size", "32", "--classes", "10", "--batch-size", "4", "--steps", "3")
IN_PASSING = re.compile(r"\] \.\./src/")  # where MXNet prints what it does

pytestmark = needs_mxnet

# The data of both programs: two classes of points that a line divides, the same on all ranks but for their part.
POINTS = """
import numpy as np
import mxnet as mx
import horovod.mxnet as hvd

hvd.init()
context = mx.cpu(hvd.local_rank())
num_workers = hvd.size()
batch_size, num_epoch = 10, 4
points = np.random.RandomState(1).normal(size=(400, 5)).astype("float32")
labels = (points.sum(axis=1) > 0).astype("float32")
mine = slice(hvd.rank(), None, num_workers)
train_data = mx.io.NDArrayIter(points[mine], labels[mine], batch_size)
mx.random.seed(hvd.rank())
"""
GLUON = """
from mxnet import autograd, gluon

model = gluon.nn.HybridSequential()
model.add(gluon.nn.Dense(16, activation="relu"), gluon.nn.Dense(2))
model.hybridize()

opt = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9)
opt = hvd.DistributedOptimizer(opt)

model.initialize(mx.init.Xavier(), ctx=context)

params = model.collect_params()
if params is not None:
    hvd.broadcast_parameters(params, root_rank=0)

trainer = gluon.Trainer(params, opt, kvstore=None)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(num_epoch):
    train_data.reset()
    for nbatch, batch in enumerate(train_data, start=1):
        data = batch.data[0].as_in_context(context)
        label = batch.label[0].as_in_context(context)
        with autograd.record():
            output = model(data)
            loss = loss_fn(output, label)
        loss.backward()
        trainer.step(batch_size)

right = (model(mx.nd.array(points, ctx=context)).argmax(axis=1).asnumpy() == labels).mean()
weights = [param.data().asnumpy() for param in model.collect_params().values()]
"""
MODULE = """
net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=16)
net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=2)
net = mx.sym.SoftmaxOutput(net, name="softmax")
model = mx.mod.Module(symbol=net, context=context)

opt = mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, rescale_grad=1.0 / batch_size)
opt = hvd.DistributedOptimizer(opt)

model.bind(data_shapes=train_data.provide_data, label_shapes=train_data.provide_label)
model.init_params(mx.init.Xavier())

(arg_params, aux_params) = model.get_params()
if arg_params is not None:
    hvd.broadcast_parameters(arg_params, root_rank=0)
if aux_params is not None:
    hvd.broadcast_parameters(aux_params, root_rank=0)
model.set_params(arg_params=arg_params, aux_params=aux_params)

model.fit(train_data, kvstore=None, optimizer=opt, num_epoch=num_epoch)

(_, right), = model.score(mx.io.NDArrayIter(points, labels, 100), "acc")
arg_params, _ = model.get_params()
weights = [arg_params[name].asnumpy() for name in sorted(arg_params)]
"""
PRINTS = """
print(f"right {right:.3f} of {len(weights)} weights {hash(b''.join(weight.tobytes() for weight in weights))}")
"""


def check_ended_well(finished: Finished) -> list[str]:
    """The lines of rank 0, when no rank has complained."""
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert [line for line in finished.stderr.splitlines() if not IN_PASSING.search(line)] == []
    return [line.removeprefix("[0] ") for line in finished.stdout.splitlines() if line.startswith("[0] ")]


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["mxnet_gluon_digits.py", "mxnet_module_digits.py"])
def test_the_digits_are_learnt_by_two_workers_with_equal_networks(hvdrun: Launcher, script: str) -> None:
    command = ("python", EXAMPLES / script, "--epochs", EPOCHS)
    finished = hvdrun("-np", "2", *command, environment=ENVIRONMENT, limit_seconds=LIMIT_SECONDS)
    *epochs, last = check_ended_well(finished)
    assert len(epochs) == int(EPOCHS)
    found = re.fullmatch(r"test accuracy (\d\.\d{3})", last)
    assert found is not None, last
    assert float(found[1]) >= 0.95


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "fp16"), [("gluon", ("--use-fp16",)), ("module", ())], ids=["gluon", "module"])
def test_a_narrow_resnet_trains_three_batches_and_leaves_a_checkpoint(
    hvdrun: Launcher, mode: str, fp16: tuple[str, ...]
) -> None:
    arguments = ("--mode", mode, *fp16, *SMALL, "--epochs", "2", "--warmup-epochs", "1", "--checkpoint", "resnet")
    command: tuple[str | Path, ...] = ("python", EXAMPLES / "mxnet_resnet50_imagenet.py", *arguments)
    finished = hvdrun("-np", "2", *command, environment=ENVIRONMENT, limit_seconds=LIMIT_SECONDS)
    lines = check_ended_well(finished)
    assert [line.partition(":")[0] for line in lines] == ["epoch  1 of 2", "epoch  2 of 2"]
    files = {path.name for path in hvdrun.directory.glob("resnet-*")}
    assert files - {"resnet-symbol.json"} == {
        f"resnet-{epoch:04d}.{kind}" for epoch in (1, 2) for kind in ("params", "states")
    }
    reads = (
        f"import mxnet as mx; print(*sorted({{str(a.dtype) for a in mx.nd.load({'resnet-0002.params'!r}).values()}}))"
    )
    reported = hvdrun("-np", "1", "python", "-c", f"import torch; {reads}", environment=ENVIRONMENT)
    expected = "<class 'numpy.float16'> <class 'numpy.float32'>" if fp16 else "<class 'numpy.float32'>"
    assert check_ended_well(reported) == [expected]


@pytest.mark.parametrize("program", rest_nightly([GLUON, MODULE]), ids=["gluon", "module"])
def test_the_programs_of_mxnets_guide_to_horovod_train(hvdrun: Launcher, program: str) -> None:
    hvdrun.write("train.py", POINTS + program + PRINTS)
    finished = hvdrun("-np", "2", "python", "train.py", environment=ENVIRONMENT, limit_seconds=LIMIT_SECONDS)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    reported = sorted(line for line in finished.stdout.splitlines() if " right " in line)
    assert [line[:4] for line in reported] == ["[0] ", "[1] "]
    assert reported[0][4:] == reported[1][4:], "the workers' networks differ"
    found = re.search(r"right (\d\.\d{3}) of 4 weights", reported[0])
    assert found is not None
    assert float(found[1]) >= 0.9
