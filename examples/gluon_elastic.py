"""An elastic Gluon script: `hvdrun -np 2 --min-np 1 python examples/gluon_elastic.py`."""

from sklearn.datasets import load_digits

import worker_runtime.mxnet as hvd  # before mxnet: it brings what slim systems lack

# isort: split
import mxnet as mx
from mxnet import autograd, gluon

digits = load_digits()
data = gluon.data.ArrayDataset(digits.data.astype("float32") / 16, digits.target.astype("float32"))
loader = gluon.data.DataLoader(data, batch_size=32, shuffle=True)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05, "momentum": 0.9})
measure = gluon.loss.SoftmaxCrossEntropyLoss()
EPOCHS = 5
state = hvd.elastic.GluonState(epoch=0)
net, trainer, loader = hvd.prepare(net, trainer, loader, scale_lr=True, state=state)


@hvd.elastic.run
def train(state: hvd.elastic.GluonState) -> None:
    """Train from the state's epoch on."""
    while state.epoch < EPOCHS:
        for step, (images, labels) in enumerate(loader, start=1):
            with autograd.record():
                loss = measure(net(images), labels)
            loss.backward()
            trainer.step(len(images))
            if step % 10 == 0:
                state.commit()  # new workers join here
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}: {hvd.size()} workers, loss {loss.mean().asscalar():.3f}", flush=True)
        state.epoch += 1


train(state)
