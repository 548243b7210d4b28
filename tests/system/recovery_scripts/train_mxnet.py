"""Trains a network with MXNet and its elastic state, and writes down every step: what it has used, and who took part.

It continues, epoch by epoch, until a file is there (--until).
"""

import argparse
import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - first: it brings the libgomp that MXNet needs

import mxnet as mx  # isort: skip
import numpy as np
from mxnet.gluon import nn
from numpy.typing import NDArray

import worker_runtime.mxnet as hvd
from tests.system.recovery_scripts.stage import Stage
from worker_runtime.membership.runtime import RUNTIME

SAMPLES, BATCH, WORDS = 120, 4, 30
WIDE = 30_000  # numbers of a layer whose gradients travel through gloo
PAUSE_SECONDS = 0.1  # of each step, so that others need not train at full speed while a worker starts
OPTIMIZERS = {"sgd": {"learning_rate": 0.05, "momentum": 0.5}, "adam": {"learning_rate": 0.01}}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "features", help="of trainer, optimizer, module; adam, children, deferred, hybrid, norm, sparse, wide"
    )
    parser.add_argument("--until", type=Path, required=True)
    parser.add_argument("--every", type=int, default=3, help="steps between commits")
    parser.add_argument("--death", action="append", default=[], help="WHO:STEP:PLACE, see Doom")
    return parser.parse_args()


class Doom(Stage):
    """Ends workers where the plan says: each death holds once, for the first that comes there.

    Args:
        folder: for the notes.
        deaths: as WHO:STEP:PLACE. WHO is an original rank of the first members, or "new" for any worker that has come
            later. The worker dies at the place in this step, or in the first one after it.
    """

    def __init__(self, folder: Path, deaths: list[str]) -> None:
        self._deaths = [death.split(":") for death in deaths]
        self._is_new = os.environ["HVD_INCARNATION"] != "1"
        self.first = -1  # the rank of one of the first members
        super().__init__(folder, [])

    def _die_at(self, place: str) -> None:
        for who, step, where in self._deaths:
            is_meant = self._is_new if who == "new" else int(who) == self.first
            if is_meant and where == place and self.step >= int(step) and self._is_first(f"{who}-{step}-{where}"):
                self.note("dying", place=place)
                os.kill(os.getpid(), signal.SIGKILL)


def make_words(samples: list[int]) -> NDArray[np.float32]:
    """Three words of each sample."""
    return np.array([[(7 * sample + 3 * place) % WORDS for place in range(3)] for sample in samples], dtype="float32")


def make_targets(samples: list[int]) -> NDArray[np.float32]:
    """A number of each sample."""
    return np.array([[sample / SAMPLES] for sample in samples], dtype="float32")


class Gluon:
    """Steps a network of Gluon."""

    def __init__(self, features: set[str], stage: Stage) -> None:
        self._stage = stage
        known = "deferred" not in features
        width = WIDE if "wide" in features else 8
        self.net = nn.HybridSequential(prefix="net_")
        with self.net.name_scope():
            self.net.add(nn.Embedding(WORDS, 6, sparse_grad="sparse" in features))
            self.net.add(nn.Dense(width, activation="tanh", in_units=18 * known))
            if "norm" in features:
                self.net.add(nn.BatchNorm(in_channels=width * known))
            self.net.add(nn.Dense(1, in_units=width * known))
        mx.random.seed(1 + os.getpid())
        self.net.initialize(mx.init.Xavier())
        if "hybrid" in features:
            self.net.hybridize(static_alloc=True)
        name = "adam" if "adam" in features else "sgd"
        self.optimizer = mx.optimizer.create(name, **OPTIMIZERS[name])
        parameters = self.net.collect_params()
        if "trainer" in features:
            self.trainer = hvd.DistributedTrainer(parameters, self.optimizer)
        else:
            self.trainer = mx.gluon.Trainer(parameters, hvd.DistributedOptimizer(self.optimizer), kvstore=None)

    def make_state(self, **values: object) -> hvd.elastic.GluonState:
        """The elastic state of this training."""
        return hvd.elastic.GluonState(net=self.net, trainer=self.trainer, **values)

    def step(self, samples: list[int]) -> None:
        """Make one."""
        self._stage.come_to("compute")
        with mx.autograd.record():
            loss = (self.net(mx.nd.array(make_words(samples))) - mx.nd.array(make_targets(samples))).square()
        self._stage.come_to("backward")
        loss.backward()
        self._stage.come_to("reduction")
        self.trainer.step(len(samples))

    def digest(self) -> str:
        """Of all that must be equal on all ranks, to the last bit."""
        arrays = [each.data() for each in self.net.collect_params(".*weight|.*bias|.*gamma|.*beta").values()]
        return digest(arrays, self.trainer._updaters[0])


class Module:
    """Steps a Module."""

    def __init__(self, features: set[str], stage: Stage) -> None:
        self._stage = stage
        net = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=WORDS, output_dim=6, name="words")
        net = mx.sym.FullyConnected(net, num_hidden=WIDE if "wide" in features else 8, name="first")
        if "norm" in features:
            net = mx.sym.BatchNorm(net, name="norm")
        net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="tanh"), num_hidden=1, name="last")
        net = mx.sym.LinearRegressionOutput(net, name="softmax")
        self.module = mx.mod.Module(net, label_names=["softmax_label"])
        self.module.bind([("data", (BATCH, 3))], [("softmax_label", (BATCH, 1))])
        mx.random.seed(1 + os.getpid())
        self.module.init_params(mx.init.Xavier())
        name = "adam" if "adam" in features else "sgd"
        self.optimizer = mx.optimizer.create(name, rescale_grad=1 / BATCH, **OPTIMIZERS[name])
        self.module.init_optimizer(kvstore=None, optimizer=hvd.DistributedOptimizer(self.optimizer))

    def make_state(self, **values: object) -> hvd.elastic.ModuleState:
        """The elastic state of this training."""
        return hvd.elastic.ModuleState(module=self.module, **values)

    def step(self, samples: list[int]) -> None:
        """Make one."""
        words, targets = mx.nd.array(make_words(samples)), mx.nd.array(make_targets(samples))
        self._stage.come_to("compute")
        self.module.forward(mx.io.DataBatch([words], [targets]), is_train=True)
        self._stage.come_to("backward")
        self.module.backward()
        self._stage.come_to("reduction")
        self.module.update()

    def digest(self) -> str:
        """See `Gluon`."""
        return digest(list(self.module.get_params()[0].values()), self.module._updater)


def digest(arrays: list[mx.nd.NDArray], updater: Any) -> str:
    """Of arrays and an updater's states."""
    hashed = hashlib.sha256()
    for state in updater.states.values():
        arrays = [*arrays, *(state if isinstance(state, tuple) else [state])]
    for array in arrays:
        hashed.update(array.asnumpy().tobytes())
    return hashed.hexdigest()


def watch_state(state: Any, stage: Stage) -> None:
    """Come to the places of a commit and of a sync: both have done a part of it there."""
    last = state._handlers["sampler"]
    save, sync = last.save, last.sync

    def note(place: str, function: Callable[[], None]) -> None:
        stage.come_to(place)
        function()

    last.save = lambda: note("saving", save)
    last.sync = lambda: note("syncing", sync)


def main() -> None:
    """Train."""
    options = parse_arguments()
    features = set(options.features.split(","))
    stage = Doom(options.folder, options.death)
    hvd.init()
    training = (Module if "module" in features else Gluon)(features, stage)
    sampler = hvd.elastic.ElasticSampler(range(SAMPLES), seed=3)
    state = training.make_state(sampler=sampler, step=0, epoch=0, is_over=False)
    watch_state(state, stage)
    children = 2 if "children" in features else 0
    loader = mx.gluon.data.DataLoader(np.arange(SAMPLES), BATCH, sampler=sampler, num_workers=children)
    stage.note("ready")
    keys: list[bytes] = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        steps = RUNTIME.engine.steps
        keys.append(RUNTIME.engine.key)
        entry = f"{keys[-1].hex()}.{keys.count(keys[-1])}"
        if not stage._is_new and len(keys) == 1:
            stage.first = steps.original_rank
        stage.enter(steps.original_rank, state.step)
        stage.note("enter", entry=entry, step=state.step, size=hvd.size())
        while not state.is_over:
            for batch in loader:
                samples = [int(each) for each in batch.asnumpy()]
                stage.step = state.step
                stage.note("batch", entry=entry, step=state.step, epoch=state.epoch, samples=[samples])
                training.step(samples)
                assert training.optimizer.num_update == state.step + 1, (training.optimizer.num_update, state.step)
                members = [RUNTIME.engine.steps.completed[1]]
                stage.note("step", entry=entry, step=state.step, members=members, digest=training.digest())
                state.sampler.record_batch(state.step, len(samples))
                stage.come_to("stepped")
                state.step += 1
                time.sleep(PAUSE_SECONDS)
                if state.step % options.every == 0:
                    state.commit()
            state.commit()  # where a rank was lost, this begins the function again, with what is left of the epoch
            is_there = hvd.allreduce(mx.nd.array([options.until.exists()]), op=hvd.Max, name="stop")
            state.is_over = bool(is_there.asscalar())
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)

    train(state)
    stage.note("done", digest=training.digest(), size=hvd.size(), rank=hvd.rank())
    hvd.shutdown()


if __name__ == "__main__":
    main()
