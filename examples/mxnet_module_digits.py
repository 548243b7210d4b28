"""Train a small convolutional network on handwritten digits with MXNet's Module API and any number of workers.

    hvdrun -np 2 python examples/mxnet_module_digits.py

The digits come with scikit-learn, so nothing is downloaded. Without hvdrun the script trains alone.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import worker_runtime.mxnet as hvd  # before mxnet: it brings what slim systems lack

# isort: split
import mxnet as mx

TEST_SAMPLES = 360  # of 1,797


class ReplicasDifferError(RuntimeError):
    """The workers' networks are not equal, bit for bit."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per worker and step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate of one worker (default: %(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="makes a run repeatable (default: %(default)s)")
    return parser.parse_args()


def load_data(seed: int, batch_size: int) -> tuple[mx.io.NDArrayIter, mx.io.NDArrayIter]:
    """This worker's part of the digits, images of shape (1, 8, 8) with values 0 to 1, to train on and to test with.

    All workers train on as many samples, so that they take as many steps.
    """
    digits = load_digits()
    images = digits.images[:, np.newaxis].astype("float32") / 16
    labels = digits.target.astype("float32")
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    train = train[: len(train) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    test = test[hvd.rank() :: hvd.size()]
    np.random.seed(seed + hvd.rank())  # noqa: NPY002 - by it NDArrayIter shuffles
    return (
        mx.io.NDArrayIter(images[train], labels[train], batch_size, shuffle=True, last_batch_handle="discard"),
        mx.io.NDArrayIter(images[test], labels[test], len(test)),
    )


def build_symbol() -> mx.sym.Symbol:
    """Two convolutions and two dense layers: images of shape (n, 1, 8, 8) to probabilities of shape (n, 10)."""
    net = mx.sym.Variable("data")
    for number, channels in enumerate((16, 32)):
        net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), num_filter=channels, name=f"convolution{number}")
        net = mx.sym.Activation(net, act_type="relu")
    net = mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="max")
    net = mx.sym.FullyConnected(net, num_hidden=64, name="dense0")
    net = mx.sym.FullyConnected(mx.sym.Activation(net, act_type="relu"), num_hidden=10, name="dense1")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def check_replicas(module: mx.mod.Module) -> None:
    """Raise ReplicasDifferError unless all workers have the same network."""
    params, _ = module.get_params()
    mine = mx.nd.concat(*[params[name].reshape(-1) for name in sorted(params)], dim=0)
    replicas = hvd.allgather(mine.expand_dims(0), name="replicas").asnumpy().view("int32")
    different = [rank for rank, replica in enumerate(replicas) if not np.array_equal(replica, replicas[0])]
    if different:
        raise ReplicasDifferError(f"the networks of ranks {different} differ from that of rank 0")


def report(epoch: int, *_: object) -> None:
    """Print that an epoch is complete."""
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1:2d} is over", flush=True)


def main() -> None:
    """Train, test, and compare the replicas."""
    arguments = parse_arguments()
    hvd.init()
    mx.random.seed(arguments.seed)
    train_data, test_data = load_data(arguments.seed, arguments.batch_size)

    module = mx.mod.Module(build_symbol(), context=mx.cpu(hvd.local_rank()))
    module.bind(train_data.provide_data, train_data.provide_label)
    module.init_params(mx.init.Xavier())
    arg_params, aux_params = module.get_params()
    hvd.broadcast_parameters(arg_params, root_rank=0)
    hvd.broadcast_parameters(aux_params, root_rank=0)
    module.set_params(arg_params, aux_params)

    steps = train_data.num_data // arguments.batch_size * arguments.epochs
    schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=arguments.lr * hvd.size())
    # A Module does not set rescale_grad of an optimizer that you create.
    optimizer = mx.optimizer.create(
        "sgd",
        momentum=arguments.momentum,
        lr_scheduler=schedule,
        rescale_grad=1 / arguments.batch_size,
        sym=module.symbol,
    )
    module.fit(
        train_data,
        kvstore=None,
        optimizer=hvd.DistributedOptimizer(optimizer),
        num_epoch=arguments.epochs,
        epoch_end_callback=report,
        arg_params=arg_params,
        aux_params=aux_params,
        force_rebind=True,  # it is bound and has its parameters: fit() would warn of that
        force_init=True,
    )

    check_replicas(module)
    (_, share), *_ = module.score(test_data, "acc")
    right = mx.nd.array([share * test_data.num_data, test_data.num_data])
    right = hvd.allreduce(right, op=hvd.Sum, name="right").asnumpy()
    if hvd.rank() == 0:
        print(f"test accuracy {right[0] / right[1]:.3f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
