"""Time of a training step in MXNet, compared with torch averaging the same tensors in the same processes; two workers.

    .venv/bin/python benchmarks/mxnet_step.py --json benchmarks/mxnet_step.json

or inside a job, `hvdrun -np 2 python benchmarks/mxnet_step.py`. It measures first the step alone, which averages and
applies given gradients. Its peer averages views of such arrays with torch's `grouped_allreduce_` and updates with
MXNet's plain Trainer. The update alone and a torch optimizer's step are shown too. Then it measures the training step
of an MXNet network with and without communication, where averaging overlaps with backward. At the end the parameters
are compared. Last comes a commit of an elastic state. torch and MXNet's operators have one thread each in a worker.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch  # before mxnet, which needs what it brings

# isort: split
import mxnet as mx
import torch.distributed as dist
from horovod_peer import join_horovod
from jobs import Block, Case, is_worker, make_parser, run_cases, run_jobs
from step_time import SHAPES, Shape
from targets import Target

import worker_runtime.mxnet as hvd_mxnet
import worker_runtime.torch as hvd_torch
from worker_runtime.mxnet.arrays import await_writable, view_for_writing

TORCH = "torch's grouped_allreduce_, MXNet's update"
WHOLLY_TORCH = "torch, DistributedOptimizer.step"
MXNET = "MXNet, DistributedTrainer.step"
WRAPPED = "MXNet, Trainer.step of a DistributedOptimizer"
HOROVOD = "MXNet, Horovod's DistributedTrainer.step"
ALONE = "MXNet, no communication"
COMMIT = "hvd.elastic.GluonState.commit"
COPY = "a copy of the same arrays"

_BATCH = 4
_FACTOR = 1.1
_COMMIT_FACTOR = 1.2
_RATE = 1e-3
_SIZE_OF_TARGETS = 2
# Of the length of the whole update: how far two ways may lie apart, since they add in different orders.
_TOLERANCE = 1e-3

MakeTrainer = Callable[[mx.gluon.ParameterDict, mx.optimizer.Optimizer], mx.gluon.Trainer]


class TorchTrainer(mx.gluon.Trainer):  # type: ignore[misc]  # mxnet has no types
    """Gluon's plain trainer, whose gradients torch's `grouped_allreduce_` averages."""

    def __init__(self, params: mx.gluon.ParameterDict, sgd: mx.optimizer.Optimizer) -> None:
        super().__init__(params, sgd, kvstore=None)
        self._views: list[torch.Tensor] = []

    def _allreduce_grads(self) -> None:
        gradients = [parameter.grad() for parameter in self._params]
        if not self._views:
            self._views = [view_for_writing(gradient) for gradient in gradients]
        await_writable(gradients)
        hvd_torch.grouped_allreduce_(self._views, name="gradients")


def make_trainers() -> dict[str, MakeTrainer]:
    """The ways of MXNet, by name."""
    horovod = join_horovod("horovod.mxnet")
    ways: dict[str, MakeTrainer] = {
        MXNET: hvd_mxnet.DistributedTrainer,
        WRAPPED: lambda params, sgd: mx.gluon.Trainer(params, hvd_mxnet.DistributedOptimizer(sgd), kvstore=None),
    }
    return ways if horovod is None else ways | {HOROVOD: horovod.DistributedTrainer}


class Steps:
    """One step on given gradients in torch and in MXNet; each contender has its own tensors, with equal values.

    Args:
        shape: the shape of the model that has these parameters.
        ways: the contenders of MXNet.
    """

    def __init__(self, shape: Shape, ways: dict[str, MakeTrainer]) -> None:
        self._model = shape.build()
        generator = torch.Generator().manual_seed(1 + dist.get_rank())
        self._gradients = [torch.randn(one.shape, generator=generator) for one in self._model.parameters()]
        self._start = [one.detach().clone() for one in self._model.parameters()]
        self._params = {name: self._make_params() for name in ways}
        sgd = torch.optim.SGD(self._model.parameters(), lr=_RATE)
        self._torch = hvd_torch.DistributedOptimizer(sgd, self._model.named_parameters())
        self._trainers = {
            name: make(self._params[name], mx.optimizer.create("sgd", learning_rate=_RATE))
            for name, make in ways.items()
        }
        self.contenders: dict[str, Block] = {
            WHOLLY_TORCH: lambda: [self._time_torch() for _ in range(shape.steps)],
            **{name: self._repeat(name, shape.steps) for name in ways},
        }

    def check(self) -> None:
        """Compare the parameters after the steps.

        Raises:
            RuntimeError: they differ between ranks, or from torch's, or are unchanged.
        """
        start = torch.cat([one.reshape(-1) for one in self._start])
        theirs = torch.cat([one.detach().reshape(-1) for one in self._model.parameters()])
        for name, params in self._params.items():
            if name == ALONE:
                continue
            own = torch.cat([torch.from_numpy(one.data().asnumpy()).reshape(-1) for one in params.values()])
            check_replicas(name, own)
            length = float((theirs - start).norm())
            if not length or float((own - theirs).norm()) > _TOLERANCE * length:
                raise RuntimeError(f"{name}: the parameters differ from torch's")

    def _make_params(self) -> mx.gluon.ParameterDict:
        params = mx.gluon.ParameterDict()
        for index, (value, gradient) in enumerate(zip(self._start, self._gradients, strict=True)):
            parameter = params.get(f"p{index}", shape=tuple(value.shape))
            parameter.initialize()
            parameter.set_data(mx.nd.array(value.numpy()))
            parameter.grad()[:] = mx.nd.array(gradient.numpy())
        return params

    def _time_torch(self) -> float:
        for parameter, gradient in zip(self._model.parameters(), self._gradients, strict=True):
            parameter.grad = gradient
        start = time.perf_counter()
        self._torch.step()
        return time.perf_counter() - start

    def _repeat(self, name: str, count: int) -> Block:
        params, trainer = self._params[name], self._trainers[name]

        def block() -> Sequence[float]:
            seconds = []
            for _ in range(count):
                for parameter in params.values():
                    parameter.data()._fresh_grad = True  # noqa: SLF001 - as backward does
                mx.nd.waitall()
                start = time.perf_counter()
                trainer.step(1)
                mx.nd.waitall()
                seconds.append(time.perf_counter() - start)
            return seconds

        return block


class Networks:
    """The same network trained by each contender of MXNet, with forward and backward."""

    def __init__(self, shape: Shape, ways: dict[str, MakeTrainer]) -> None:
        context = mx.cpu(dist.get_rank())
        self._nets: dict[str, mx.gluon.Block] = {}
        self.contenders: dict[str, Block] = {}
        for name, make in ways.items():
            mx.random.seed(1)
            net = mx.gluon.nn.HybridSequential()
            for _ in range(shape.layers):
                net.add(mx.gluon.nn.Dense(shape.width, in_units=shape.width, activation="relu"))
            net.initialize(mx.init.Xavier("gaussian", "in", magnitude=2), ctx=context)  # no number becomes denormal
            hvd_mxnet.broadcast_parameters(net.collect_params())
            net.hybridize()
            sgd = mx.optimizer.create("sgd", learning_rate=_RATE)
            self._nets[name] = net
            self.contenders[name] = self._repeat(net, make(net.collect_params(), sgd), shape, context)

    def check(self) -> None:
        """Compare the replicas; raises RuntimeError."""
        for name, net in self._nets.items():
            if name != ALONE:
                arrays = [one.data().asnumpy() for one in net.collect_params().values()]
                check_replicas(name, torch.cat([torch.from_numpy(array).reshape(-1) for array in arrays]))

    @staticmethod
    def _repeat(net: mx.gluon.Block, trainer: mx.gluon.Trainer, shape: Shape, context: mx.Context) -> Block:
        data = [mx.nd.random.normal(shape=(_BATCH, shape.width), ctx=context) for _ in range(_BATCH)]
        batches = itertools.cycle(data)

        def block() -> Sequence[float]:
            seconds = []
            for _ in range(shape.steps):
                start = time.perf_counter()
                with mx.autograd.record():
                    loss = net(next(batches)).square().mean()
                loss.backward()
                trainer.step(1)
                mx.nd.waitall()
                seconds.append(time.perf_counter() - start)
            return seconds

        return block


class Commits:
    """A commit of parameters and momenta, until all copies are there, and a copy of the same arrays on the device."""

    def __init__(self, shape: Shape) -> None:
        net = mx.gluon.nn.HybridSequential()
        for _ in range(shape.layers):
            net.add(mx.gluon.nn.Dense(shape.width, in_units=shape.width))
        net.initialize()
        trainer = hvd_mxnet.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0, "momentum": 0.9})
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, shape.width))).mean()
        loss.backward()
        trainer.step(1)
        self._state = hvd_mxnet.elastic.GluonState(net=net, trainer=trainer)
        arrays = [one.data() for one in net.collect_params().values()]
        arrays += trainer._updaters[0].states.values()  # noqa: SLF001 - MXNet's only way
        self._pairs = [(one, one.copy()) for one in arrays]
        self.contenders: dict[str, Block] = {
            COPY: lambda: [self._time(self._copy) for _ in range(shape.steps)],
            COMMIT: lambda: [self._time(self._state.commit) for _ in range(shape.steps)],
        }

    def _copy(self) -> None:
        for array, copied in self._pairs:
            array.copyto(copied)

    @staticmethod
    def _time(function: Callable[[], None]) -> float:
        mx.nd.waitall()
        start = time.perf_counter()
        function()
        mx.nd.waitall()
        return time.perf_counter() - start


def check_replicas(name: str, own: torch.Tensor) -> None:
    """Raise RuntimeError unless rank 0 has the same values."""
    first = own.clone()
    dist.broadcast(first, src=0)
    if not torch.equal(own, first):
        raise RuntimeError(f"{name}: rank {dist.get_rank()} has other parameters than rank 0")


def main() -> int:
    """Start the job, or take part in it."""
    parser = make_parser(__doc__, [_SIZE_OF_TARGETS])
    parser.add_argument("--model", choices=[*SHAPES, "both"], default="both")
    arguments = parser.parse_args()
    if not is_worker():
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        return run_jobs(Path(__file__).resolve(), arguments.np, arguments.json)
    torch.set_num_threads(1)
    hvd_torch.init()
    dist.init_process_group("gloo")
    size, ways = dist.get_world_size(), make_trainers()
    own = frozenset({MXNET, WRAPPED})
    cases, takers = [], []
    for shape in SHAPES.values() if arguments.model == "both" else [SHAPES[arguments.model]]:
        steps = Steps(shape, {ALONE: make_alone, TORCH: TorchTrainer, **ways})
        networks = Networks(shape, {ALONE: make_alone, **ways})
        takers += [steps, networks]
        targets = [Target(MXNET, TORCH, _FACTOR)] if size == _SIZE_OF_TARGETS else []
        title = f"{shape.name}, SGD, N={size}"
        cases.append(Case(f"Gradients that are there, {title}", steps.contenders, (TORCH,), targets, own))
        cases.append(Case(f"Training, batch {_BATCH}, {title}", networks.contenders, (ALONE,), (), own))
        # The small one's commit is its message: whether hosts have come.
        targets = [Target(COMMIT, COPY, _COMMIT_FACTOR)] if shape is SHAPES["large"] else []
        cases.append(Case(f"A commit, {title}", Commits(shape).contenders, (COPY,), targets, frozenset({COMMIT})))
    run_cases(cases, arguments)
    if arguments.profile is None:
        for taker in takers:
            taker.check()
    dist.destroy_process_group()
    return 0


def make_alone(params: mx.gluon.ParameterDict, sgd: mx.optimizer.Optimizer) -> mx.gluon.Trainer:
    """Without communication."""
    return mx.gluon.Trainer(params, sgd, kvstore=None)


if __name__ == "__main__":
    sys.exit(main())
