"""`hvd.prepare` for Gluon: all that distributes a training script, in one call; and the steps with no other name."""

from typing import Any, TypeVar, overload

import mxnet as mx
from mxnet.gluon.data import BatchSampler, DataLoader, FilterSampler, RandomSampler, Sampler, SequentialSampler

from worker_runtime.api.basics import init, local_rank, size
from worker_runtime.api.functions import broadcast_object
from worker_runtime.errors import WrongArgumentError
from worker_runtime.mxnet.functions import broadcast_optimizer_state, broadcast_parameters
from worker_runtime.mxnet.optimizer import DistributedOptimizer
from worker_runtime.mxnet.trainer import DistributedTrainer
from worker_runtime.preparation import (
    DataNotSplitError,
    RankOrder,
    SchedulerExistsError,
    choose_device,
    run_steps,
)

__all__ = ["pin_device", "prepare", "scale_learning_rate", "split_data"]

NetT = TypeVar("NetT")
TrainerT = TypeVar("TrainerT")
DataT = TypeVar("DataT")

_OWN = (FilterSampler, RandomSampler, SequentialSampler)  # Gluon's, which know of no ranks

_KEPT = ("batchify_fn", "num_workers", "pin_memory", "pin_device_id", "prefetch", "thread_pool", "timeout")


def pin_device() -> mx.Context:
    """Let this worker use the GPU of its local rank: it becomes MXNet's current context in this thread.

    Where this worker sees one GPU only, it is that one.

    Returns:
        The context; the current one where there is no GPU.

    Raises:
        ValueError: there are fewer GPUs than workers on this host, or Horovod has not been initialized.
    """
    count = mx.context.num_gpus()
    if count:
        mx.gpu(choose_device(count, local_rank())).__enter__()  # for good
    return mx.current_context()


def scale_learning_rate(trainer: mx.gluon.Trainer | mx.optimizer.Optimizer) -> None:
    """Multiply the learning rate by the number of workers, of whose batches each step is the mean.

    Args:
        trainer: or an optimizer; one without a learning rate scheduler, which has its own base.

    Raises:
        ValueError: it has a scheduler, or Horovod has not been initialized.
    """
    optimizer = trainer.optimizer if isinstance(trainer, mx.gluon.Trainer) else trainer
    if optimizer.lr_scheduler is not None:
        raise SchedulerExistsError("make the scheduler with base_lr multiplied by hvd.size(), and leave scale_lr out")
    optimizer.set_learning_rate(optimizer.lr * size())


class RankSampler(RankOrder, Sampler):  # type: ignore[misc]  # mxnet has no types
    """Any sampler's order, of which each rank gets its share; see `preparation.RankOrder`."""


def split_data(data: Any) -> Any:  # noqa: ANN401 - mxnet has no types
    """Give each rank its share of a Gluon DataLoader's data: every size-th sample, and as many on all ranks.

    The loader that is given stays as it is; the new one has all else of it, its own worker processes too. The order is
    that of rank 0's sampler, so that `np.random.seed()` on rank 0 repeats it; it is another one in each pass if the
    loader shuffles. All ranks begin each pass together. `batch_size` counts for one worker.

    Args:
        data: a `gluon.data.DataLoader`; or a sampler of your own that knows of no ranks, to make a DataLoader with.

    Raises:
        ValueError: it is neither, or has a batch sampler or a sampler of its own; the sentence says what to write by
            hand.
    """
    if isinstance(data, Sampler):
        return RankSampler(data)
    if type(data) is not DataLoader:
        raise DataNotSplitError(
            f"it is a {type(data).__name__}, not a gluon.data.DataLoader",
            "give each rank its part by hand (rows [hvd.rank()::hvd.size()] of arrays, or num_parts=hvd.size() and "
            "part_index=hvd.rank() of an mx.io iterator), and pass split_data=False to hvd.prepare()",
        )
    own = vars(data)
    batches = own["_batch_sampler"]
    if type(batches) is not BatchSampler:
        raise DataNotSplitError(
            f"its batch sampler is a {type(batches).__name__}",
            "let it give the batches [hvd.rank()::hvd.size()], equally many on all ranks, and pass split_data=False",
        )
    sampler, batch_size, last_batch = (vars(batches)[name] for name in ("_sampler", "_batch_size", "_last_batch"))
    if isinstance(sampler, RankSampler):
        return data
    if type(sampler) not in _OWN:
        raise DataNotSplitError(
            f"its sampler is a {type(sampler).__name__}, which may give each rank its share already",
            "if it does, pass split_data=False; else make the DataLoader with sampler=hvd.split_data(sampler)",
        )
    kept = {name: own[f"_{name}"] for name in _KEPT}
    shared = BatchSampler(RankSampler(sampler), batch_size, last_batch)
    return DataLoader(own["_dataset"], batch_sampler=shared, auto_reload=data.auto_reload, **kept)


_split = split_data  # prepare has an argument of that name


@overload
def prepare(net: NetT, *, pin_device: bool = ..., broadcast: bool = ...) -> NetT: ...
@overload
def prepare(
    net: NetT,
    trainer: TrainerT,
    *,
    scale_lr: bool = ...,
    pin_device: bool = ...,
    wrap_optimizer: bool = ...,
    broadcast: bool = ...,
) -> tuple[NetT, TrainerT]: ...
@overload
def prepare(
    net: NetT,
    trainer: TrainerT,
    data: DataT,
    *,
    scale_lr: bool = ...,
    pin_device: bool = ...,
    wrap_optimizer: bool = ...,
    broadcast: bool = ...,
    split_data: bool = ...,
) -> tuple[NetT, TrainerT, DataT]: ...
@overload
def prepare(
    net: NetT, *, data: DataT, pin_device: bool = ..., broadcast: bool = ..., split_data: bool = ...
) -> tuple[NetT, DataT]: ...
def prepare(
    net: Any,
    trainer: Any = None,
    data: Any = None,
    *,
    scale_lr: bool = False,
    pin_device: bool = True,
    wrap_optimizer: bool = True,
    broadcast: bool = True,
    split_data: bool = True,
) -> Any:
    """Distribute a training script: do what it would do by hand, and return what was given, in that order.

    It joins the job (`hvd.init()`), gives each rank its share of the loader's data (`hvd.split_data`), pins one GPU to
    each worker (`hvd.pin_device`) and moves parameters there that lie on one GPU, lets gradients be averaged, and gives
    all ranks the parameters and the trainer's states of rank 0. Parameters whose shape is not known yet follow in the
    first forward. Arrays are made on `mx.current_context()` afterwards.

    (Long because each step has its switch, and its explanation.)

    Args:
        net: an initialised Block.
        trainer: a `gluon.Trainer`, in whose place there is an `hvd.DistributedTrainer` with its parameters, optimizer
            and states; or an optimizer, which becomes an `hvd.DistributedOptimizer`, to make a Trainer with
            `kvstore=None` from. What averages already stays as it is.
        data: a `gluon.data.DataLoader`; `batch_size` is that of one worker.
        scale_lr: multiply the learning rate by the number of workers.
        pin_device: False leaves each worker's device to the script; the same with the following steps.
        wrap_optimizer: False averages no gradients.
        broadcast: False leaves parameters and states as they are.
        split_data: False leaves the loader as it is.

    Returns:
        The net; the net and the trainer; or the net, the trainer and the loader.

    Raises:
        ValueError: something else was given, or the loader's data cannot be split; the sentence says what to write by
            hand.
        HorovodInternalError: the ranks do not have the same net, or a rank has ended.
    """
    if not isinstance(net, mx.gluon.Block):
        raise WrongArgumentError(f"prepare: a gluon.Block was expected first, not {type(net).__name__}")
    if trainer is not None and not isinstance(trainer, mx.gluon.Trainer | mx.optimizer.Optimizer):
        raise WrongArgumentError(
            f"prepare: a gluon.Trainer or an optimizer was expected second, not {type(trainer).__name__}"
        )
    init()
    return run_steps(
        net,
        trainer,
        data,
        split=_split if split_data else None,
        pin=_pin if pin_device else None,
        scale=scale_learning_rate if scale_lr else None,
        wrap=_wrap if wrap_optimizer else None,
        broadcast=_broadcast if broadcast else None,
    )


def _pin(net: mx.gluon.Block) -> None:
    context = pin_device()
    if context.device_type != "gpu":
        return
    for parameter in net.collect_params().values():
        contexts = parameter.list_ctx()
        if len(contexts) == 1 and contexts[0].device_type == "gpu" and contexts[0] != context:
            parameter.reset_ctx(context)


def _wrap(_: mx.gluon.Block, trainer: Any) -> Any:  # noqa: ANN401 - mxnet has no types
    optimizer = trainer.optimizer if isinstance(trainer, mx.gluon.Trainer) else trainer
    if isinstance(trainer, DistributedTrainer) or isinstance(optimizer, DistributedOptimizer):
        return trainer
    return DistributedOptimizer(trainer) if trainer is optimizer else _distribute(trainer)


def _broadcast(net: mx.gluon.Block, trainer: Any) -> None:  # noqa: ANN401 - as above
    broadcast_parameters(net.collect_params(), root_rank=0)
    if not isinstance(trainer, mx.gluon.Trainer) or trainer._update_on_kvstore:  # noqa: SLF001 - where its states are
        return
    has_states = any(updater.states for updater in trainer._updaters)  # noqa: SLF001 - the same
    if broadcast_object(has_states, root_rank=0, name="prepare.states"):
        broadcast_optimizer_state(trainer, root_rank=0)


def _distribute(trainer: mx.gluon.Trainer) -> DistributedTrainer:
    """A distributed trainer with another one's parameters, optimizer and states."""
    if type(trainer) is not mx.gluon.Trainer:
        raise WrongArgumentError(
            f"prepare: a {type(trainer).__name__} cannot be made distributed; derive it from hvd.DistributedTrainer"
        )
    own = vars(trainer)
    if own["_compression_params"]:
        raise WrongArgumentError(
            "prepare: the trainer compresses gradients for a key-value store; make an hvd.DistributedTrainer by hand, "
            "with compression=hvd.Compression.fp16"
        )
    if own["_update_on_kvstore"]:
        raise WrongArgumentError(
            "prepare: the trainer's states are in a key-value store; make it with kvstore=None, or prepare it before "
            "its first step"
        )
    distributed = DistributedTrainer(own["_params"], trainer.optimizer)
    distributed.__dict__.update({name: own[name] for name in ("_updaters", "_scale")})  # with the states that it has
    return distributed
