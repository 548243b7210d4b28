"""Train ResNet-50 with MXNet, by Gluon or by the Module API, on record files of ImageNet or on random images.

    hvdrun -np 8 -H server1:4,server2:4 python examples/mxnet_resnet50_imagenet.py --data-train train.rec
    hvdrun -np 2 python examples/mxnet_resnet50_imagenet.py --mode module --steps 20 --epochs 1

The learning rate `--lr` is multiplied by the number of workers, after a warm-up. After each epoch rank 0 writes a
checkpoint. `im2rec`, which comes with MXNet, creates record files.
"""

import argparse
import hashlib
import time
from collections.abc import Iterator

import worker_runtime.mxnet as hvd  # before mxnet: it brings what slim systems lack

# isort: split
import mxnet as mx
from mxnet.gluon.model_zoo.vision.resnet import BottleneckV1, ResNetV1

LAYERS = (3, 4, 6, 3)
CHANNELS = (64, 256, 512, 1024, 2048)
IMAGENET_IMAGES = 1_281_167
DECAY_EPOCHS = (30, 60, 80)


class ReplicasDifferError(RuntimeError):
    """The workers' networks are not equal, bit for bit."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["gluon", "module"], default="gluon", help="API (default: %(default)s)")
    parser.add_argument("--data-train", metavar="FILE", help="record file of images (default: random images)")
    parser.add_argument("--image-size", type=int, default=224, help="height and width (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="number of classes (default: %(default)s)")
    parser.add_argument("--narrow", type=int, default=1, help="divide the number of channels by this, for trials")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per worker and step (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=90, help="passes over the images (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="steps per epoch (default: one pass over ImageNet)")
    parser.add_argument("--lr", type=float, default=0.0125, help="learning rate of one worker (default: %(default)s)")
    parser.add_argument(
        "--warmup-epochs", type=float, default=5, help="epochs up to the full rate (default: %(default)s)"
    )
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of SGD (default: %(default)s)")
    parser.add_argument("--wd", type=float, default=1e-4, help="weight decay (default: %(default)s)")
    parser.add_argument(
        "--use-fp16",
        action="store_true",
        help="store weights and gradients in float16; the optimizer has float32 master copies. MXNet's "
        "operators compute in float32, as they lack float16 on CPUs",
    )
    parser.add_argument("--checkpoint", metavar="PREFIX", help="prefix of the files written after each epoch")
    return parser.parse_args()


class MadeUpImages(mx.io.DataIter):
    """Gives the same random batch in each step."""

    def __init__(self, shape: tuple[int, ...], classes: int, context: mx.Context) -> None:
        super().__init__(shape[0])
        images = mx.nd.random.normal(shape=shape, ctx=context)
        labels = mx.nd.random.randint(0, classes, shape=shape[:1], ctx=context).astype("float32")
        self.provide_data = [mx.io.DataDesc("data", shape)]
        self.provide_label = [mx.io.DataDesc("softmax_label", shape[:1])]
        self._batch = mx.io.DataBatch([images], [labels], pad=0)

    def next(self) -> mx.io.DataBatch:
        """Return the batch."""
        return self._batch


def open_images(arguments: argparse.Namespace, context: mx.Context) -> mx.io.DataIter:
    """This worker's images, in epochs of equally many steps on all workers."""
    shape = (3, arguments.image_size, arguments.image_size)
    if arguments.data_train is None:
        images: mx.io.DataIter = MadeUpImages((arguments.batch_size, *shape), arguments.classes, context)
    else:
        images = mx.io.ImageRecordIter(
            path_imgrec=arguments.data_train,
            data_shape=shape,
            batch_size=arguments.batch_size,
            part_index=hvd.rank(),
            num_parts=hvd.size(),
            shuffle=True,
            rand_crop=True,
            rand_mirror=True,
            resize=arguments.image_size,
            mean_r=123.68,
            mean_g=116.78,
            mean_b=103.94,
            std_r=58.4,
            std_g=57.1,
            std_b=57.4,
        )
    return mx.io.ResizeIter(images, arguments.steps)


def build_network(arguments: argparse.Namespace) -> ResNetV1:
    """ResNet-50: images of shape (n, 3, size, size) to scores of shape (n, classes)."""
    channels = [channels // arguments.narrow for channels in CHANNELS]
    network = ResNetV1(BottleneckV1, list(LAYERS), channels, classes=arguments.classes, prefix="resnet50_")
    if arguments.use_fp16:
        store_in_half(network.collect_params())
    return network


def store_in_half(params: mx.gluon.ParameterDict) -> None:
    """Stores weights and gradients in float16; the operators get copies in float32."""
    for parameter in params.values():
        if parameter.grad_req != "null":
            parameter.cast("float16")
            parameter.var = lambda var=parameter.var: mx.sym.cast(var(), "float32")


def make_optimizer(arguments: argparse.Namespace) -> mx.optimizer.Optimizer:
    """SGD with momentum and a learning rate schedule: warm-up, then decay."""
    rate = arguments.lr * hvd.size()
    schedule = mx.lr_scheduler.MultiFactorScheduler(
        step=[epoch * arguments.steps for epoch in DECAY_EPOCHS],
        factor=0.1,
        base_lr=rate,
        warmup_steps=int(arguments.warmup_epochs * arguments.steps),
        warmup_begin_lr=arguments.lr,
    )
    return mx.optimizer.create(
        "sgd",
        learning_rate=rate,
        lr_scheduler=schedule,
        momentum=arguments.momentum,
        wd=arguments.wd,
        multi_precision=arguments.use_fp16,
    )


def train_with_gluon(arguments: argparse.Namespace, context: mx.Context) -> Iterator[float]:
    """Train; yield the mean loss of each epoch on this worker, after its checkpoint is written."""
    network = build_network(arguments)
    network.initialize(mx.init.Xavier("gaussian", "in", magnitude=2), ctx=context)
    network.hybridize()
    params = network.collect_params()
    hvd.broadcast_parameters(params, root_rank=0)
    trainer = hvd.DistributedTrainer(params, make_optimizer(arguments))
    measure = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    images = open_images(arguments, context)
    for epoch in range(arguments.epochs):
        total = mx.nd.zeros(1, ctx=context)
        for batch in images:
            with mx.autograd.record():
                scores = network(batch.data[0].as_in_context(context))
                loss = measure(scores, batch.label[0].as_in_context(context))
            loss.backward()
            trainer.step(arguments.batch_size)
            total += loss.mean()
        images.reset()
        if arguments.checkpoint and hvd.rank() == 0:
            network.save_parameters(f"{arguments.checkpoint}-{epoch + 1:04d}.params")
            trainer.save_states(f"{arguments.checkpoint}-{epoch + 1:04d}.states")
        yield total.asscalar() / arguments.steps
    check_replicas([parameter.data() for parameter in params.values() if parameter.grad_req != "null"])


def train_with_module(arguments: argparse.Namespace, context: mx.Context) -> Iterator[float]:
    """Train; yield the mean loss of each epoch on this worker, after its checkpoint is written."""
    symbol = mx.sym.SoftmaxOutput(build_network(arguments)(mx.sym.Variable("data")), name="softmax")
    images = open_images(arguments, context)
    module = mx.mod.Module(symbol, context=context)
    module.bind(images.provide_data, images.provide_label)
    module.init_params(mx.init.Xavier("gaussian", "in", magnitude=2))
    arg_params, aux_params = module.get_params()
    hvd.broadcast_parameters(arg_params, root_rank=0, prefix="arg.")
    hvd.broadcast_parameters(aux_params, root_rank=0, prefix="aux.")
    module.set_params(arg_params, aux_params)
    optimizer = make_optimizer(arguments)
    optimizer.rescale_grad = 1 / arguments.batch_size  # a Module does not set it for an optimizer that you create
    module.init_optimizer(kvstore=None, optimizer=hvd.DistributedOptimizer(optimizer))
    loss = mx.metric.CrossEntropy()
    for epoch in range(arguments.epochs):
        loss.reset()
        for batch in images:
            module.forward_backward(batch)
            module.update()
            module.update_metric(loss, batch.label)
        images.reset()
        if arguments.checkpoint and hvd.rank() == 0:
            module.save_checkpoint(arguments.checkpoint, epoch + 1, save_optimizer_states=True)
        yield loss.get()[1]
    arg_params, _ = module.get_params()
    check_replicas([arg_params[name] for name in sorted(arg_params)])


def check_replicas(arrays: list[mx.nd.NDArray]) -> None:
    """Raise ReplicasDifferError unless all workers have the same values."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.asnumpy().tobytes())
    replicas = hvd.allgather_object(digest.hexdigest())
    different = [rank for rank, replica in enumerate(replicas) if replica != replicas[0]]
    if different:
        raise ReplicasDifferError(f"the networks of ranks {different} differ from that of rank 0")


def main() -> None:
    """Train, and print the progress."""
    arguments = parse_arguments()
    hvd.init()
    if arguments.steps is None:
        arguments.steps = IMAGENET_IMAGES // (arguments.batch_size * hvd.size())
    context = mx.cpu(hvd.local_rank())
    train = train_with_gluon if arguments.mode == "gluon" else train_with_module
    began = time.monotonic()
    for epoch, loss in enumerate(train(arguments, context), 1):
        images = arguments.steps * arguments.batch_size * hvd.size()
        speed, began = images / (time.monotonic() - began), time.monotonic()
        mean = float(hvd.allreduce(mx.nd.array([loss]), name="loss").asscalar())
        if hvd.rank() == 0:
            print(f"epoch {epoch:2d} of {arguments.epochs}: loss {mean:.4f}, {speed:.1f} images per second", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
