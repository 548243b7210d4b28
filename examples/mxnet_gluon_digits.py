"""Train a small convolutional network on handwritten digits with MXNet's Gluon and any number of workers.

    hvdrun -np 2 python examples/mxnet_gluon_digits.py

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


def load_data(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The digits as images of shape (1, 8, 8) with values 0 to 1, and their labels: for training, and for testing."""
    digits = load_digits()
    images = digits.images[:, np.newaxis].astype("float32") / 16
    labels = digits.target.astype("float32")
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = order[:TEST_SAMPLES], order[TEST_SAMPLES:]
    return images[train], labels[train], images[test], labels[test]


def build_network() -> mx.gluon.nn.HybridSequential:
    """Two convolutions and two dense layers: images of shape (n, 1, 8, 8) to scores of shape (n, 10)."""
    network = mx.gluon.nn.HybridSequential()
    network.add(
        mx.gluon.nn.Conv2D(16, kernel_size=3, padding=1, activation="relu"),
        mx.gluon.nn.Conv2D(32, kernel_size=3, padding=1, activation="relu"),
        mx.gluon.nn.MaxPool2D(2),
        mx.gluon.nn.Dense(64, activation="relu"),
        mx.gluon.nn.Dense(10),
    )
    return network


def split_data(images: np.ndarray, labels: np.ndarray, seed: int) -> mx.gluon.data.ArrayDataset:
    """This worker's part of an epoch, shuffled. All workers have equally many samples, and so equally many steps."""
    order = np.random.default_rng(seed).permutation(len(labels))
    mine = order[: len(order) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]
    return mx.gluon.data.ArrayDataset(images[mine], labels[mine])


def train_epoch(
    network: mx.gluon.Block, trainer: mx.gluon.Trainer, batches: mx.gluon.data.DataLoader, context: mx.Context
) -> float:
    """Train on this worker's part of the data; return the mean loss over all workers."""
    measure = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    total = mx.nd.zeros(1, ctx=context)
    for images, labels in batches:
        with mx.autograd.record():
            loss = measure(network(images.as_in_context(context)), labels.as_in_context(context))
        loss.backward()
        trainer.step(len(images))
        total += loss.mean()
    return float(hvd.allreduce(total / len(batches), name="loss").asscalar())


def measure_accuracy(network: mx.gluon.Block, images: np.ndarray, labels: np.ndarray, context: mx.Context) -> float:
    """The share of right answers over all test data; each worker tests its part."""
    mine = slice(hvd.rank(), None, hvd.size())
    scores = network(mx.nd.array(images[mine], ctx=context))
    right = (scores.argmax(axis=1) == mx.nd.array(labels[mine], ctx=context)).sum()
    return float(hvd.allreduce(right, op=hvd.Sum, name="right").asscalar()) / len(labels)


def check_replicas(network: mx.gluon.Block) -> None:
    """Raise ReplicasDifferError unless all workers have the same network."""
    mine = mx.nd.concat(*[one.data().reshape(-1) for one in network.collect_params().values()], dim=0)
    replicas = hvd.allgather(mine.expand_dims(0), name="replicas").asnumpy().view("int32")
    different = [rank for rank, replica in enumerate(replicas) if not np.array_equal(replica, replicas[0])]
    if different:
        raise ReplicasDifferError(f"the networks of ranks {different} differ from that of rank 0")


def main() -> None:
    """Train, test, and compare the replicas."""
    arguments = parse_arguments()
    hvd.init()
    mx.random.seed(arguments.seed)
    context = mx.cpu(hvd.local_rank())
    images, labels, test_images, test_labels = load_data(arguments.seed)

    network = build_network()
    network.initialize(mx.init.Xavier(), ctx=context)
    network.hybridize()
    params = network.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)  # their shapes are unknown yet: each is sent at its first use
    steps = len(labels) // hvd.size() // arguments.batch_size * arguments.epochs
    schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=arguments.lr * hvd.size())
    trainer = hvd.DistributedTrainer(params, "sgd", {"momentum": arguments.momentum, "lr_scheduler": schedule})

    for epoch in range(arguments.epochs):
        part = split_data(images, labels, arguments.seed + epoch)
        batches = mx.gluon.data.DataLoader(part, arguments.batch_size, last_batch="discard")
        loss = train_epoch(network, trainer, batches, context)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d} of {arguments.epochs}: loss {loss:.4f}", flush=True)

    check_replicas(network)
    accuracy = measure_accuracy(network, test_images, test_labels, context)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.3f}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
