"""States of optimizers, as they are saved and loaded: with the user's own optimizer, whoever averages.

MXNet saves the momenta of a trainer together with its optimizer, and lets the one that it loads take the place of its
own. A wrapper around an optimizer would so get into trainers that are to have none, and be lost where one must be. One
class of MXNet's does all of the saving and loading, the `Updater`, for trainers, modules and key-value stores alike,
and it asks nobody. So two of its methods are replaced, when there is a wrapper for the first time, and only then:
others may replace them too, before or after. They do as before where no wrapper is concerned; where one is, the wrapper
stays what and where it is, and what it wraps travels.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any

import mxnet as mx
from mxnet.optimizer import Updater


class Wrapper(mx.optimizer.Optimizer, ABC):  # type: ignore[misc]  # mxnet has no types
    """An optimizer around another one, of which files know nothing."""

    @abstractmethod
    def find_wrapped(self) -> mx.optimizer.Optimizer:
        """The other one."""

    @abstractmethod
    def replace_wrapped(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Another one takes its place."""


def unwrap(optimizer: mx.optimizer.Optimizer) -> mx.optimizer.Optimizer:
    """The user's own optimizer, whether it is distributed or not."""
    return optimizer.find_wrapped() if isinstance(optimizer, Wrapper) else optimizer


@cache
def keep_wrappers() -> None:
    """Let wrappers stay in their places and out of files, from now on and in all of MXNet."""
    Updater.get_states = _make_getter(Updater.get_states)
    Updater.set_states = _make_setter(Updater.set_states)


def _make_getter(get: Callable[[Any, bool], bytes]) -> Callable[[Any, bool], bytes]:
    """In place of `Updater.get_states`: with what is wrapped."""

    def get_states(updater: Any, dump_optimizer: bool = False) -> bytes:  # noqa: ANN401, FBT001, FBT002 - MXNet's signature
        own = updater.optimizer
        updater.optimizer = unwrap(own)
        try:
            return get(updater, dump_optimizer)
        finally:
            updater.optimizer = own

    return get_states


def _make_setter(put: Callable[[Any, bytes], None]) -> Callable[[Any, bytes], None]:
    """In place of `Updater.set_states`: what is loaded is wrapped as the one before was, or not at all."""

    def set_states(updater: Any, states: bytes) -> None:  # noqa: ANN401 - an Updater
        own = updater.optimizer
        put(updater, states)
        loaded = updater.optimizer
        if loaded is own:  # the states have come without one
            return
        updater.optimizer = unwrap(loaded)
        if isinstance(own, Wrapper):
            own.replace_wrapped(updater.optimizer)
            updater.optimizer = own

    return set_states
