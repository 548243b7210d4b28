"""Small networks for these tests, what of them is compared, and what cannot be computed."""

import mxnet as mx
import numpy as np

import worker_runtime.mxnet as hvd

INPUT = (2, 6)


def make_network(
    seed: int, inputs: int = 0, outputs: int = 3, contexts: list[mx.Context] | None = None
) -> mx.gluon.nn.HybridSequential:
    """A network whose parameters are drawn from `seed`; deferred until the first forward where `inputs` is 0."""
    network = mx.gluon.nn.HybridSequential(prefix="net_")
    with network.name_scope():
        network.add(
            mx.gluon.nn.Dense(4, in_units=inputs, activation="relu"),
            mx.gluon.nn.BatchNorm(in_channels=4 if inputs else 0),
            mx.gluon.nn.Dense(outputs, in_units=4 if inputs else 0, use_bias=False),
        )
    mx.random.seed(seed)
    network.initialize(mx.init.Normal(1.0), ctx=contexts or mx.cpu())
    return network


def forward(network: mx.gluon.Block) -> mx.nd.NDArray:
    """The network's output for some input, as in a step of training."""
    with mx.autograd.record():
        return network(mx.nd.ones(INPUT))


def read(network: mx.gluon.Block) -> dict[str, list[float]]:
    """The parameters that a forward does not change, by name."""
    parameters = network.collect_params(".*weight|.*bias|.*gamma|.*beta")
    return {name: parameter.data().asnumpy().ravel().tolist() for name, parameter in parameters.items()}


def fill(network: mx.gluon.Block, value: float) -> None:
    """Set all parameters to a value."""
    for parameter in network.collect_params().values():
        parameter.set_data(mx.nd.full(parameter.shape, value))


def are_equal(value: object) -> bool:
    """Whether all ranks have the same arrays."""
    first, *others = hvd.allgather_object(value)
    return all(np.array_equal(first[name], other[name]) for other in others for name in first)


def begin_long(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """Enqueue what takes the engine a while and ends with the values of `array`, read last."""
    matrix = mx.nd.ones((900, 900))
    for _ in range(8):
        matrix = mx.nd.dot(matrix, matrix) * 0
    return array + matrix[0, 0]


def make_spoilt(size: int = 600) -> mx.nd.NDArray:
    """What the engine cannot compute: it finds out that there is no root. Its maker reads it.

    It is no random draw: MXNet keeps an error with all that an operation writes to, so that of a draw might be raised
    by a later one, which uses the same generator.
    """
    return mx.nd.linalg.potrf(-mx.nd.eye(size))
