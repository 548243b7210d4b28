"""`hvd.prepare`: all that distributes a training script, in one call; and the steps that have no other name."""

from functools import partial
from typing import Any, TypeVar, overload

import torch
from torch.utils.data import DataLoader

from worker_runtime.api.basics import init, local_rank, size
from worker_runtime.errors import WrongArgumentError
from worker_runtime.preparation import SchedulerExistsError, choose_device, run_steps
from worker_runtime.torch.elastic import ElasticSampler, TorchState
from worker_runtime.torch.functions import broadcast_model, broadcast_optimizer_state
from worker_runtime.torch.loaders import split_data as split
from worker_runtime.torch.optimizer import DistributedOptimizer
from worker_runtime.torch.proxies import OptimizerProxy, check_optimizer

__all__ = ["pin_device", "prepare", "scale_learning_rate"]

ModelT = TypeVar("ModelT", bound=torch.nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)
LoaderT = TypeVar("LoaderT", bound=DataLoader[Any])

_INITIAL = "initial_lr"  # which schedulers leave in a parameter group
_SCALED_FOR = "learning_rate_scaled_for"  # in the elastic state: for how many workers


def pin_device() -> torch.device:
    """Let this worker use the GPU of its local rank: what is then made on "cuda" lies there.

    Where this worker sees one GPU only, it is that one.

    Returns:
        The device; the processor where there is no GPU.

    Raises:
        ValueError: there are fewer GPUs than workers on this host, or Horovod has not been initialized.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = choose_device(torch.cuda.device_count(), local_rank())
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def scale_learning_rate(optimizer: torch.optim.Optimizer) -> None:
    """Multiply the learning rates by the number of workers, of whose batches each step is the mean.

    Args:
        optimizer: one that has no learning rate scheduler yet, since a scheduler notes the learning rate.

    Raises:
        ValueError: it is none, or has a scheduler, or Horovod has not been initialized.
    """
    check_optimizer("scale_learning_rate", optimizer)
    if any(_INITIAL in group for group in optimizer.param_groups):
        raise SchedulerExistsError(
            "make the scheduler afterwards, or multiply lr by hvd.size() where it is first given"
        )
    _multiply(optimizer, size())


def _multiply(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        for name in {"lr", _INITIAL} & group.keys():
            group[name] = group[name] * factor


@overload
def prepare(
    model: ModelT,
    optimizer: None = ...,
    loader: None = ...,
    *,
    state: TorchState | None = ...,
    pin_device: bool = ...,
    broadcast: bool = ...,
) -> ModelT: ...
@overload
def prepare(
    model: ModelT,
    optimizer: OptimizerT,
    loader: None = ...,
    *,
    scale_lr: bool = ...,
    state: TorchState | None = ...,
    pin_device: bool = ...,
    wrap_optimizer: bool = ...,
    broadcast: bool = ...,
) -> tuple[ModelT, OptimizerT]: ...
@overload
def prepare(
    model: ModelT,
    optimizer: OptimizerT,
    loader: LoaderT,
    *,
    scale_lr: bool = ...,
    seed: int = ...,
    state: TorchState | None = ...,
    pin_device: bool = ...,
    wrap_optimizer: bool = ...,
    broadcast: bool = ...,
    split_data: bool = ...,
) -> tuple[ModelT, OptimizerT, LoaderT]: ...
@overload
def prepare(
    model: ModelT,
    optimizer: None = ...,
    *,
    loader: LoaderT,
    seed: int = ...,
    state: TorchState | None = ...,
    pin_device: bool = ...,
    broadcast: bool = ...,
    split_data: bool = ...,
) -> tuple[ModelT, LoaderT]: ...
def prepare(
    model: Any,
    optimizer: Any = None,
    loader: Any = None,
    *,
    scale_lr: bool = False,
    seed: int = 0,
    state: TorchState | None = None,
    pin_device: bool = True,
    wrap_optimizer: bool = True,
    broadcast: bool = True,
    split_data: bool = True,
) -> Any:
    """Distribute a training script: do what it would do by hand, and return what was given, in that order.

    It joins the job (`hvd.init()`), gives each rank its share of the loader's data (`hvd.split_data`, which says what
    that means for each kind of loader), pins one GPU to each worker (`hvd.pin_device`), lets the optimizer average
    gradients (`hvd.DistributedOptimizer`; one that does already stays as it is), and gives all ranks the model's and
    the optimizer's state of rank 0. Move the model to the GPU afterwards, or call `hvd.pin_device()` before.

    (Long because each step has its switch, and its explanation.)

    Args:
        model: a module.
        optimizer: of the model's parameters; without one nothing is averaged.
        loader: a DataLoader; `batch_size` is that of one worker.
        scale_lr: multiply the learning rate by the number of workers; with a state it follows that number. Make a
            learning rate scheduler after this call.
        seed: of the order of shuffled samples.
        state: `hvd.elastic.TorchState(epoch=0)`, of elastic training: the model, the optimizer and the loader's sampler
            become part of it, and its `epoch` says which epoch a pass through the loader is.
        pin_device: False leaves each worker's device to the script; the same with the following steps.
        wrap_optimizer: False averages no gradients.
        broadcast: False leaves parameters and states as they are.
        split_data: False leaves the loader as it is.

    Returns:
        The model; the model and the optimizer; or the model, the optimizer and the loader.

    Raises:
        ValueError: something else was given, or the loader's data cannot be split; the sentence says what to write by
            hand.
        HorovodInternalError: the ranks do not have the same model, or a rank has ended.
    """
    if not isinstance(model, torch.nn.Module):
        raise WrongArgumentError(f"prepare: a torch.nn.Module was expected first, not {type(model).__name__}")
    if optimizer is not None:
        check_optimizer("prepare", optimizer)
    if state is not None and loader is not None and split_data and not hasattr(state, "epoch"):
        raise WrongArgumentError(
            "prepare: the loader follows the state's epoch, which it lacks; give state=hvd.elastic.TorchState(epoch=0)"
        )
    init()
    prepared = run_steps(
        model,
        optimizer,
        loader,
        split=partial(split, seed=seed, state=state) if split_data else None,
        pin=_pin if pin_device else None,
        scale=scale_learning_rate if scale_lr else None,
        wrap=_wrap if wrap_optimizer else None,
        broadcast=_broadcast if broadcast else None,
    )
    if state is not None:
        _register(state, prepared if isinstance(prepared, tuple) else (prepared,), scale_lr=scale_lr)
    return prepared


def _pin(_: torch.nn.Module) -> None:
    pin_device()


def _wrap(model: torch.nn.Module, optimizer: Any) -> Any:  # noqa: ANN401 - of the optimizer's own class
    if isinstance(optimizer, OptimizerProxy):
        return optimizer
    known = set(model.parameters())
    others = sum(parameter not in known for group in optimizer.param_groups for parameter in group["params"])
    if others:
        raise WrongArgumentError(
            f"prepare: {others} of the optimizer's parameters are not the model's; make the optimizer from "
            "model.parameters(), or give prepare one torch.nn.ModuleList of all that the optimizer trains"
        )
    return DistributedOptimizer(optimizer, model.named_parameters())


def _broadcast(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    broadcast_model(model, root_rank=0)
    if optimizer is not None:
        broadcast_optimizer_state(optimizer, root_rank=0)


def _register(state: TorchState, prepared: tuple[Any, ...], *, scale_lr: bool) -> None:
    """Make what was prepared a part of the state."""
    for each in prepared:
        if isinstance(each, torch.nn.Module):
            state.register(model=each)
        elif not isinstance(each, DataLoader):
            state.register(optimizer=each)
        elif isinstance(each.sampler, ElasticSampler):
            state.register(sampler=each.sampler)
    if scale_lr and "optimizer" in vars(state):
        state.register(**{_SCALED_FOR: size()})

        def scale_anew() -> None:
            _multiply(state.optimizer, size() / getattr(state, _SCALED_FOR))
            setattr(state, _SCALED_FOR, size())

        state.register_reset_callbacks([scale_anew])
