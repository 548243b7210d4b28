"""Learning rate schedulers of torch, whose learning rates follow the number of workers."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from worker_runtime.torch.proxies import unwrap

INITIAL = "initial_lr"  # which schedulers leave in a parameter group
_OF_GROUPS = {"lr", INITIAL}
_OF_SCHEDULED_GROUPS = {"max_lr", "min_lr", "swa_lr"}  # left there by OneCycleLR and SWALR
_OF_SCHEDULERS = ("base_lrs", "max_lrs", "min_lrs", "eta_min", "_last_lr")


def find_schedulers(optimizer: torch.optim.Optimizer, objects: Iterable[object]) -> list[LRScheduler]:
    """The optimizer's schedulers among some objects, with those of which they consist, each once."""
    found = {
        id(each): each
        for scheduler in objects
        if isinstance(scheduler, LRScheduler)
        for each in _list_parts(scheduler)
        if unwrap(each.optimizer) is unwrap(optimizer)
    }
    return list(found.values())


def multiply(optimizer: torch.optim.Optimizer, schedulers: Iterable[LRScheduler], factor: float) -> None:
    """Multiply the present and all later learning rates by a factor.

    Args:
        optimizer: its present learning rates are multiplied.
        schedulers: the base rates and bounds from which they calculate later rates are multiplied.
        factor: the factor.
    """
    for group in optimizer.param_groups:
        names = _OF_GROUPS | (_OF_SCHEDULED_GROUPS if INITIAL in group else set())
        for name in names & group.keys():
            group[name] = group[name] * factor
    for scheduler in schedulers:
        own = vars(scheduler)
        own.update({name: _multiply(own[name], factor) for name in _OF_SCHEDULERS if name in own})


def _multiply(value: Any, factor: float) -> Any:
    if isinstance(value, list | tuple):
        return [each * factor for each in value]
    return value * factor


def _list_parts(scheduler: LRScheduler) -> Iterator[LRScheduler]:
    """The scheduler, and those that a ChainedScheduler or a SequentialLR calls."""
    yield scheduler
    for part in vars(scheduler).get("_schedulers", ()):
        yield from _list_parts(part)
