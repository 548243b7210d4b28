"""One line distributes a Gluon script: `hvdrun -np 2 python examples/mxnet_gluon_one_line.py`."""

import numpy as np
from sklearn.datasets import load_digits

import worker_runtime.mxnet as hvd  # before mxnet: it brings what slim systems lack

# isort: split
import mxnet as mx
from mxnet import autograd, gluon

digits = load_digits()
data = gluon.data.ArrayDataset(digits.data.astype("float32") / 16, digits.target.astype("float32"))
np.random.seed(1)  # noqa: NPY002 - the generator by which Gluon shuffles
loader = gluon.data.DataLoader(data, batch_size=32, shuffle=True)
mx.random.seed(1)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
measure = gluon.loss.SoftmaxCrossEntropyLoss()

net, trainer, loader = hvd.prepare(net, trainer, loader, scale_lr=True)  # the line

for epoch in range(5):
    for images, labels in loader:
        with autograd.record():
            loss = measure(net(images), labels)
        loss.backward()
        trainer.step(len(images))
    mean = hvd.allreduce(loss.mean(), name="loss").asscalar()
    if hvd.rank() == 0:
        print(f"epoch {epoch}: loss {mean:.3f}", flush=True)
