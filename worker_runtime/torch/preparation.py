"""`hvd.prepare`: distribute a training script with one call; and two of its steps, for use alone."""

import os
import warnings
from functools import partial
from typing import Any, TypeVar, overload

import torch
from torch.utils.data import DataLoader

from worker_runtime.api.basics import cross_size, init, local_rank, rank, size
from worker_runtime.errors import WrongArgumentError
from worker_runtime.groups.backends.choice import Features, choose_backends
from worker_runtime.preparation import SchedulerExistsError, choose_device, follow_size, run_steps
from worker_runtime.rendezvous import Backend, read_backend
from worker_runtime.torch.elastic import ElasticSampler, TorchState
from worker_runtime.torch.functions import broadcast_model, broadcast_optimizer_state
from worker_runtime.torch.loaders import split_data as split
from worker_runtime.torch.optimizer import DistributedOptimizer
from worker_runtime.torch.proxies import OptimizerProxy, check_optimizer
from worker_runtime.torch.schedulers import INITIAL, find_schedulers, multiply

__all__ = ["describe_device", "pin_device", "prepare", "scale_learning_rate"]

ModelT = TypeVar("ModelT", bound=torch.nn.Module)
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)
LoaderT = TypeVar("LoaderT", bound=DataLoader[Any])

_SCALED_FOR = "learning_rate_scaled_for"  # in the elastic state: for how many workers
_UNKNOWN_SCHEDULER = (
    "the learning rate follows the number of workers, but the optimizer's scheduler may set it back: it is not in the "
    "state; write state.register(scheduler=scheduler)"
)


def pin_device() -> torch.device:
    """Make the GPU of this worker's local rank the current CUDA device.

    If the worker sees only one GPU, it uses that one.

    Returns:
        The device, for example cuda:1; cpu where there is no GPU.

    Raises:
        ValueError: the host has fewer GPUs than workers, or Horovod has not been initialized.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = choose_device(torch.cuda.device_count(), local_rank())
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def describe_device(device: torch.device) -> str:
    """A line for a program's log: where it trains, what connects the workers there, and how many they are.

    Args:
        device: as `pin_device` returns it.

    Returns:
        For example "cuda:0 NVIDIA H100, nccl 2.28.9; 2 workers on 1 host", or "cpu, gloo; 4 workers on 2 hosts".

    Raises:
        ValueError: Horovod has not been initialized.
    """
    workers, hosts = size(), cross_size()
    requested = read_backend(os.environ)
    backend = choose_backends(requested, Features.look(requested)).of(device.type)
    means = f"{backend} {'.'.join(map(str, torch.cuda.nccl.version()))}" if backend is Backend.NCCL else backend  # type: ignore[no-untyped-call]  # torch leaves it untyped
    place = f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)
    jobs = f"{workers} {'worker' if workers == 1 else 'workers'} on {hosts} {'host' if hosts == 1 else 'hosts'}"
    return f"{place}, {means}; {jobs}"


def scale_learning_rate(optimizer: torch.optim.Optimizer) -> None:
    """Multiply the learning rates by the number of workers, as the batch of a step grows by that factor.

    This is the linear scaling rule of Goyal et al., 2017, "Accurate, Large Minibatch SGD".

    Args:
        optimizer: an optimizer without a learning rate scheduler: a scheduler would keep the earlier learning rate.

    Raises:
        ValueError: `optimizer` is not an optimizer, or has a scheduler, or Horovod has not been initialized.
    """
    check_optimizer("scale_learning_rate", optimizer)
    if any(INITIAL in group for group in optimizer.param_groups):
        raise SchedulerExistsError(
            "create the scheduler afterwards, or multiply lr by hvd.size() where you create the optimizer"
        )
    multiply(optimizer, [], size())


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
    """Distribute a training script, and return the distributed objects in the order of the arguments.

    `prepare` does these steps in order; you can switch off all but the first:

    1. `hvd.init()` joins the job.
    2. `hvd.split_data` gives each rank its share of the loader's data.
    3. `hvd.pin_device` gives each worker one GPU. Move the model to the GPU after `prepare`, or call
       `hvd.pin_device()` before.
    4. `hvd.DistributedOptimizer` wraps the optimizer, unless it is already distributed.
    5. The model's and the optimizer's state of rank 0 is broadcast to all ranks.

    Args:
        model: a module.
        optimizer: an optimizer of the model's parameters. Without one, no gradients are averaged.
        loader: a DataLoader; `batch_size` is the batch size of one worker.
        scale_lr: multiply the learning rate by the number of workers. With `state`, it follows that number when the job
            changes. Create a learning rate scheduler after this call, and put it into the state: then all that it
            calculates follows, too.
        seed: the seed of the shuffled order.
        state: `hvd.elastic.TorchState(epoch=0)`, for elastic training. `prepare` registers the model, the optimizer and
            the loader's sampler in it. Its `epoch` is the epoch of each pass through the loader.
        pin_device: False skips step 3.
        wrap_optimizer: False skips step 4.
        broadcast: False skips step 5.
        split_data: False skips step 2.

    Returns:
        The model; the model and the optimizer; or the model, the optimizer and the loader.

    Raises:
        ValueError: an argument is wrong, or the loader's data cannot be split. The message says what to write by hand.
        HorovodInternalError: the ranks have different models, or a rank was lost.
    """
    if not isinstance(model, torch.nn.Module):
        raise WrongArgumentError(f"prepare: a torch.nn.Module was expected first, not {type(model).__name__}")
    if optimizer is not None:
        check_optimizer("prepare", optimizer)
    if state is not None and loader is not None and split_data and not hasattr(state, "epoch"):
        raise WrongArgumentError(
            "prepare: the loader follows the state's epoch, which it lacks; give state=hvd.elastic.TorchState(epoch=0)"
        )
    for known in (getattr(state, "model", None), getattr(state, "optimizer", None)):
        if isinstance(known, torch.nn.Module | torch.optim.Optimizer):
            _check_same(known, model)

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


def _check_same(known: torch.nn.Module | torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Raise WrongArgumentError if what the state has trains nothing of the model, which would take its place."""
    if isinstance(known, torch.nn.Module):
        groups = [{"params": known.parameters()}]
    else:
        groups = known.param_groups
    theirs = {parameter for group in groups for parameter in group["params"]}
    if theirs and theirs.isdisjoint(model.parameters()):
        raise WrongArgumentError(
            f"prepare: the state has the {'model' if isinstance(known, torch.nn.Module) else 'optimizer'} of another "
            "prepare() already; leave state out here, and give it these by other names, as in "
            "state.register(judge=model, judge_optimizer=optimizer, judge_sampler=loader.sampler)"
        )


def _pin(_: torch.nn.Module) -> None:
    pin_device()


def _wrap(model: torch.nn.Module, optimizer: Any) -> Any:
    if isinstance(optimizer, OptimizerProxy):
        return optimizer
    known = set(model.parameters())
    others = sum(parameter not in known for group in optimizer.param_groups for parameter in group["params"])
    if others:
        raise WrongArgumentError(
            f"prepare: {others} of the optimizer's parameters are not the model's; create the optimizer with "
            "model.parameters(), or give prepare one torch.nn.ModuleList of all modules that the optimizer trains"
        )
    return DistributedOptimizer(optimizer, model.named_parameters())


def _broadcast(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    broadcast_model(model, root_rank=0)
    if optimizer is not None:
        broadcast_optimizer_state(optimizer, root_rank=0)


def _register(state: TorchState, prepared: tuple[Any, ...], *, scale_lr: bool) -> None:
    """Register the prepared objects in the state."""
    for each in prepared:
        if isinstance(each, torch.nn.Module):
            state.register(model=each)
        elif not isinstance(each, DataLoader):
            state.register(optimizer=each)
        elif isinstance(each.sampler, ElasticSampler):
            state.register(sampler=each.sampler)
    if scale_lr and "optimizer" in vars(state):
        follow_size(state, _SCALED_FOR, lambda factor: _rescale(state, factor))


def _rescale(state: TorchState, factor: float) -> None:
    """Multiply the learning rates of the state's optimizer and schedulers, by another factor than 1."""
    if factor == 1:
        return
    optimizer = state.optimizer
    schedulers = find_schedulers(optimizer, (handler.value for handler in state._handlers.values()))  # noqa: SLF001 - of the state that `prepare` fills
    multiply(optimizer, schedulers, factor)
    if rank() == 0 and not schedulers and any(INITIAL in group for group in optimizer.param_groups):
        warnings.warn(_UNKNOWN_SCHEDULER, stacklevel=2)
