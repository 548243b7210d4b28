"""`hvd.prepare` for Gluon: distribute a training script with one call; and three of its steps, for use alone."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

import mxnet as mx

from worker_runtime.api.basics import init, local_rank, size
from worker_runtime.api.functions import broadcast_object
from worker_runtime.errors import LocalStepError, WrongArgumentError
from worker_runtime.mxnet.elastic import GluonState
from worker_runtime.mxnet.functions import broadcast_optimizer_state, broadcast_parameters
from worker_runtime.mxnet.loaders import RecordedLoader
from worker_runtime.mxnet.loaders import split_data as split
from worker_runtime.mxnet.optimizer import DistributedOptimizer
from worker_runtime.mxnet.trainer import DistributedTrainer
from worker_runtime.preparation import SchedulerExistsError, choose_device, follow_size, run_steps

__all__ = ["pin_device", "prepare", "scale_learning_rate"]

NetT = TypeVar("NetT")
TrainerT = TypeVar("TrainerT")
DataT = TypeVar("DataT")

_SCALED_FOR = "learning_rate_scaled_for"  # in the elastic state: for how many workers
# What MXNet's schedulers begin with, and their bounds.
_OF_SCHEDULERS = ("base_lr", "base_lr_orig", "final_lr", "stop_factor_lr", "warmup_begin_lr", "warmup_final_lr")


def pin_device() -> mx.Context:
    """Make the GPU of this worker's local rank MXNet's current context in this thread.

    If the worker sees only one GPU, it uses that one.

    Returns:
        The context, for example gpu(1); the unchanged current context where there is no GPU.

    Raises:
        ValueError: the host has fewer GPUs than workers, or Horovod has not been initialized.
    """
    count = mx.context.num_gpus()
    if count:
        mx.gpu(choose_device(count, local_rank())).__enter__()  # for good
    return mx.current_context()


def scale_learning_rate(trainer: mx.gluon.Trainer | mx.optimizer.Optimizer) -> None:
    """Multiply the learning rate by the number of workers, as the batch of a step grows by that factor.

    This is the linear scaling rule of Goyal et al., 2017, "Accurate, Large Minibatch SGD".

    Args:
        trainer: a trainer or an optimizer, without a learning rate scheduler: a scheduler keeps its own `base_lr`.

    Raises:
        ValueError: it has a scheduler, or Horovod has not been initialized.
    """
    optimizer = trainer
    if isinstance(trainer, mx.gluon.Trainer):
        optimizer = trainer.optimizer
    if optimizer.lr_scheduler is not None:
        raise SchedulerExistsError("multiply the scheduler's base_lr by hvd.size(), and leave scale_lr out")
    _multiply(optimizer, size())


def _multiply(optimizer: mx.optimizer.Optimizer, factor: float) -> None:
    """Multiply the present and all later learning rates."""
    scheduler = optimizer.lr_scheduler
    if scheduler is None:
        optimizer.set_learning_rate(optimizer.learning_rate * factor)
        return
    own = vars(scheduler)
    own.update({name: own[name] * factor for name in _OF_SCHEDULERS if name in own})


@overload
def prepare(net: NetT, *, state: GluonState | None = ..., pin_device: bool = ..., broadcast: bool = ...) -> NetT: ...
@overload
def prepare(
    net: NetT,
    trainer: TrainerT,
    *,
    scale_lr: bool = ...,
    state: GluonState | None = ...,
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
    seed: int = ...,
    state: GluonState | None = ...,
    pin_device: bool = ...,
    wrap_optimizer: bool = ...,
    broadcast: bool = ...,
    split_data: bool = ...,
) -> tuple[NetT, TrainerT, DataT]: ...
@overload
def prepare(
    net: NetT,
    *,
    data: DataT,
    seed: int = ...,
    state: GluonState | None = ...,
    pin_device: bool = ...,
    broadcast: bool = ...,
    split_data: bool = ...,
) -> tuple[NetT, DataT]: ...
def prepare(
    net: Any,
    trainer: Any = None,
    data: Any = None,
    *,
    scale_lr: bool = False,
    seed: int = 0,
    state: GluonState | None = None,
    pin_device: bool = True,
    wrap_optimizer: bool = True,
    broadcast: bool = True,
    split_data: bool = True,
) -> Any:
    """Distribute a training script, and return the distributed objects in the order of the arguments.

    `prepare` does these steps in order; you can switch off all but the first:

    1. `hvd.init()` joins the job.
    2. `hvd.split_data` gives each rank its share of the loader's data.
    3. `hvd.pin_device` gives each worker one GPU, and parameters on another GPU are moved there. Afterwards, create
       arrays on `mx.current_context()`.
    4. A trainer or an optimizer becomes distributed, unless it already is.
    5. The parameters and the trainer's states of rank 0 are broadcast to all ranks. Parameters of unknown shape follow
       in the first forward.

    Args:
        net: an initialized Block.
        trainer: a `gluon.Trainer`: `prepare` returns an `hvd.DistributedTrainer` with its parameters, optimizer and
            states. Or an optimizer: `prepare` returns an `hvd.DistributedOptimizer`, for a Trainer with
            `kvstore=None`.
        data: a `gluon.data.DataLoader`; `batch_size` is the batch size of one worker.
        scale_lr: multiply the learning rate by the number of workers. With `state`, it follows that number when the job
            changes.
        seed: the seed of the shuffled order in an elastic job.
        state: `hvd.elastic.GluonState(epoch=0)`, for elastic training. `prepare` registers the net, the trainer and the
            loader's sampler in it. Its `epoch` is the epoch of each pass through the loader.
        pin_device: False skips step 3.
        wrap_optimizer: False skips step 4.
        broadcast: False skips step 5.
        split_data: False skips step 2.

    Returns:
        The net; the net and the trainer; or the net, the trainer and the loader.

    Raises:
        ValueError: an argument is wrong, or the loader's data cannot be split. The message says what to write by hand.
        HorovodInternalError: the ranks have different nets, or a rank was lost.
    """
    if not isinstance(net, mx.gluon.Block):
        raise WrongArgumentError(f"prepare: a gluon.Block was expected first, not {type(net).__name__}")
    if trainer is not None and not isinstance(trainer, mx.gluon.Trainer | mx.optimizer.Optimizer):
        raise WrongArgumentError(
            f"prepare: a gluon.Trainer or an optimizer was expected second, not {type(trainer).__name__}"
        )
    if state is not None and data is not None and split_data and not hasattr(state, "epoch"):
        raise WrongArgumentError(
            "prepare: the loader follows the state's epoch, which it lacks; give state=hvd.elastic.GluonState(epoch=0)"
        )
    if state is not None and isinstance(trainer, mx.optimizer.Optimizer):
        raise WrongArgumentError(
            "prepare: the state saves the trainer, which has the optimizer's states; give a gluon.Trainer with the "
            "optimizer"
        )

    init()
    prepared = run_steps(
        net,
        trainer,
        data,
        split=partial(split, seed=seed, state=state) if split_data else None,
        pin=_pin if pin_device else None,
        scale=scale_learning_rate if scale_lr else None,
        wrap=_wrap if wrap_optimizer else None,
        broadcast=_broadcast if broadcast else None,
    )
    if state is not None:
        _register(state, prepared if isinstance(prepared, tuple) else (prepared,), scale_lr=scale_lr)
    return prepared


def _pin(net: mx.gluon.Block) -> None:
    context = pin_device()
    if context.device_type != "gpu":
        return
    for parameter in net.collect_params().values():
        contexts = parameter.list_ctx()
        if len(contexts) == 1 and contexts[0].device_type == "gpu" and contexts[0] != context:
            parameter.reset_ctx(context)


def _wrap(_: mx.gluon.Block, trainer: Any) -> Any:
    optimizer = trainer
    if isinstance(trainer, mx.gluon.Trainer):
        optimizer = trainer.optimizer
    if isinstance(trainer, DistributedTrainer) or isinstance(optimizer, DistributedOptimizer):
        return trainer
    if trainer is optimizer:
        return DistributedOptimizer(trainer)
    return _distribute(trainer)


def _broadcast(net: mx.gluon.Block, trainer: Any) -> None:
    broadcast_parameters(net.collect_params(), root_rank=0)
    if not isinstance(trainer, mx.gluon.Trainer) or trainer._update_on_kvstore:  # noqa: SLF001 - where its states are
        return
    has_states = any(updater.states for updater in trainer._updaters)  # noqa: SLF001 - where its states are
    if broadcast_object(has_states, root_rank=0, name="prepare.states"):
        broadcast_optimizer_state(trainer, root_rank=0)


def _distribute(trainer: mx.gluon.Trainer) -> DistributedTrainer:
    """A distributed trainer with the parameters, optimizer and states of another trainer."""
    if type(trainer) is not mx.gluon.Trainer:
        raise WrongArgumentError(
            f"prepare: a {type(trainer).__name__} cannot be made distributed; derive it from hvd.DistributedTrainer"
        )
    own = vars(trainer)
    if own["_compression_params"]:
        raise WrongArgumentError(
            "prepare: the trainer compresses gradients for a key-value store; create an hvd.DistributedTrainer "
            "yourself, with compression=hvd.Compression.fp16"
        )
    if own["_update_on_kvstore"]:
        raise WrongArgumentError(
            "prepare: the trainer's states are in a key-value store; create it with kvstore=None, or prepare it before "
            "its first step"
        )

    distributed = DistributedTrainer(own["_params"], trainer.optimizer)
    kept = [name for name in own if name in {"_updaters", "_scale"} or name.startswith("_amp_")]
    distributed.__dict__.update({name: own[name] for name in kept})  # with its states, and its scaler
    distributed.expect_scale()
    own.update({name: _refuse_several(getattr(trainer, name)) for name in ("step", "update")})
    return distributed


def _refuse_several(method: Callable[..., None]) -> Callable[..., None]:
    """A method of a trainer that `prepare` has replaced: it raises LocalStepError in a job of several workers."""

    def call(*given: Any, **more: Any) -> None:
        if size() > 1:
            raise LocalStepError(method.__name__, "call it of the trainer that hvd.prepare() has returned")
        method(*given, **more)

    return call


def _register(state: GluonState, prepared: tuple[Any, ...], *, scale_lr: bool) -> None:
    """Register the prepared objects in the state."""
    for each in prepared:
        if isinstance(each, mx.gluon.Block):
            state.register(net=each)
        elif isinstance(each, mx.gluon.Trainer):
            state.register(trainer=each)
        elif isinstance(each, RecordedLoader):
            state.register(sampler=each.sampler)
    if scale_lr and "trainer" in vars(state):
        follow_size(state, _SCALED_FOR, lambda factor: _multiply(state.trainer.optimizer, factor))
